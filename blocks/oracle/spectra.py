"""Singular values of kernels, in float64 NumPy."""

import numpy as np


def sigma1(w):
    """Of each matrix [..., d_in, d_out]."""
    return np.linalg.svd(np.asarray(w, np.float64), compute_uv=False)[..., 0]


def frobenius(w):
    return np.sqrt((np.asarray(w, np.float64) ** 2).sum(axis=(-2, -1)))


def head_sigma1(q, k, n_heads, n_kv_heads, d_head):
    """sigma1(W_q W_k^T) / sqrt(d_head), head by head, of kernels [d_model, ...]."""
    out = []
    for head in range(n_heads):
        shared = head // (n_heads // n_kv_heads)
        w_q = q[:, head * d_head : (head + 1) * d_head]
        w_k = k[:, shared * d_head : (shared + 1) * d_head]
        out.append(sigma1(w_q @ w_k.T) / np.sqrt(d_head))
    return np.array(out)
