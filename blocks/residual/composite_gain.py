"""How much signal and gradient grow through the stream mixing of many sub-layers."""


def composite_gains(mixings) -> dict:
    """Gains of products of mixing matrices, for every sub-layer l of L.

        forward   P_l = H_l ... H_2 H_1     |row sums|: what reaches sub-layer l
        backward  P_l = H_L ... H_(l+1) H_l   |column sums|: what comes back to it

    Args:
        mixings: [L, n, n], mixing matrices H of successive sub-layers,
            new[i] = sum_j H[i, j] x[j]; a NumPy or a JAX array.

    Returns:
        [L] each, natural logarithms, for forward and backward: `*_log_max` (the paper's
        gain), `*_log_min` (attenuation, which the maximum hides), of the absolute sums;
        and `*_log_norm`, of the largest sum of absolute values, which is the gain of the
        norm and larger where entries are negative. All 0 for doubly stochastic matrices.

    Source: arXiv 2512.24880, figures 3, 7 and 8; log_min is an addition.
    """
    xp = mixings.__array_namespace__()
    length = len(mixings)
    # Vectors are enough for sums, but the norm needs whole products.
    ahead, back = [mixings[0]], [mixings[-1]]
    for step in range(1, length):
        ahead.append(mixings[step] @ ahead[-1])
        back.append(back[-1] @ mixings[length - 1 - step])
    products = {"forward": (xp.stack(ahead), 2), "backward": (xp.stack(back[::-1]), 1)}
    gains = {}
    for name, (product, axis) in products.items():
        total = xp.log(abs(product.sum(axis=axis)))
        gains[f"{name}_log_max"] = total.max(axis=1)
        gains[f"{name}_log_min"] = total.min(axis=1)
        gains[f"{name}_log_norm"] = xp.log(abs(product).sum(axis=axis).max(axis=1))
    return gains
