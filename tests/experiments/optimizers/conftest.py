import jax
import pytest


@pytest.fixture
def x64():
    """Float64 arithmetic for the duration of one test."""
    with jax.enable_x64(True):
        yield
