"""Training and evaluation: the one switch of modules that behave differently."""

from flax import nnx


def set_training(model: nnx.Module, is_training: bool) -> None:
    """Sets `is_training` on every module inside `model` that has such an attribute.

    Dropout is then the identity, and BatchNorm and router biases use what they have
    gathered without changing it.
    """
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Module) and hasattr(node, "is_training"):
            node.is_training = is_training
