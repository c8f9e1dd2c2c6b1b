"""What a program becomes for a device that is not there."""

from collections.abc import Sequence

import jax

from experiments.errors import ConfigError
from experiments.execution import FUNCTIONS, Executables, MemberLayout, lift
from experiments.program import Program

PLATFORMS = ("cuda", "tpu")


def lowered(
    program: Program,
    name: str,
    platforms: Sequence[str] = PLATFORMS,
    *,
    n_members: int = 2,
) -> dict[str, jax.stages.Lowered]:
    """A function of a program as StableHLO, for each platform, in their layout, vmap.

    Pallas kernels are lowered too, to Triton and to Mosaic. Nothing is compiled: whether
    a device's own compiler takes the result, and what it needs of memory and time, is
    known there alone. What is decided by the default device and not by the platform
    (cuDNN attention under `implementation: auto`) is decided as on this machine.

    name: a function of `experiments.execution.Executables`: train_steps, probed_steps...

    Raises:
        ConfigError: an operation has no lowering for one of the platforms.
    """
    layout = MemberLayout("vmap", n_workers=1)
    executables = Executables(program, layout)
    arguments, _ = FUNCTIONS[name]
    per_member = executables.per_member(arguments)
    fn = lift(getattr(program, name), layout.name, per_member)
    found = {}
    with jax.enable_x64(program.signature.x64):
        traced = jax.jit(fn).trace(*executables.abstract(n_members, arguments))
        # One at a time: for several at once JAX would lower every kernel for each.
        for platform in platforms:
            try:
                found[platform] = traced.lower(lowering_platforms=(platform,))
            except NotImplementedError as error:
                told = str(error).partition("\n")[0]
                raise ConfigError(
                    f"{name} does not lower for {platform}: {told}"
                ) from None
    return found
