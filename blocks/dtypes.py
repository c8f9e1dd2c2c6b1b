"""What a model can compute in."""

from blocks.checks import check_choice

DTYPES = ("float32", "bfloat16", "float64")


def check_dtype(dtype: str) -> None:
    """Raises ValueError for what a model cannot compute in."""
    if dtype == "float16":
        raise ValueError(
            "dtype float16: gradients below 6e-8 vanish and activations above 65504 "
            "overflow, and there is no loss scaling here; take bfloat16"
        )
    check_choice("dtype", dtype, DTYPES)
