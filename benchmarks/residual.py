"""What several streams cost: python -m benchmarks.residual [--rounds 7] [--tokens 1024].

A language model of width 512 and 8 layers, loss and gradients, under several residual
schemes. Times are medians over rounds of the ratio to the plain residual, the schemes
taking turns in random order within a round, so that what else runs on the machine
falls on all alike. FLOPs are XLA's count for one block and its gradients, to which the
iterations of Sinkhorn are added: XLA counts the body of a loop once.

Targets for mHC of 4 streams: at most 1.15 times the FLOPs and 1.5 times the time.
"""

import argparse
import random
import statistics
import time

import jax
from flax import nnx
from rich.console import Console
from rich.table import Table

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.ffn.mlp import MLP
from blocks.inits.normal import Normal
from blocks.language_model import LanguageModel
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import layout_of
from blocks.placement import Placement
from blocks.residual.add import Add
from blocks.residual.go_mhc import GoMHC
from blocks.residual.hyper_connections import HyperConnections
from blocks.residual.identity_hc import IdentityHC
from blocks.residual.mhc import MHC
from blocks.residual.mhc_lite import MHCLite
from blocks.residual.orthogonal import Orthogonal

SCHEMES = {
    "plain": Add(),
    "mhc": MHC(),
    "mhc_1_iteration": MHC(iterations=1),  # less this, the rest is Sinkhorn
    "identity_hc": IdentityHC(),  # less this, the rest is mixing
    "hc": HyperConnections(),
    "hc_static": HyperConnections(is_dynamic=False),
    "mhc_lite": MHCLite(),
    "orthogonal": Orthogonal(),
    "go_mhc": GoMHC(),
    "mhc_2_streams": MHC(n_streams=2),
}
D_MODEL, N_LAYERS, SEQ_LEN, VOCAB = 512, 8, 128, 256


def make_model(residual, n_layers=N_LAYERS):
    return LanguageModel(
        VOCAB,
        D_MODEL,
        n_layers=n_layers,
        n_heads=8,
        d_ff=4 * D_MODEL,
        norm=RMSNorm,
        attention=GroupedQueryAttention,
        ffn=MLP,
        residual=residual,
        placement=Placement(),
        init=Normal(),
        rngs=nnx.Rngs(0),
    )


def compiled_step(residual, tokens):
    """The compiled loss and gradients, and parameters for it."""
    layout = layout_of(lambda: make_model(residual))
    params = jax.jit(lambda: layout.split(make_model(residual))[0])()

    def loss(params, tokens):
        return layout.merge(params, {}).loss(tokens)[0]

    step = jax.jit(jax.value_and_grad(loss))
    return step.lower(params, tokens).compile(), params


def flops(step, residual, n_tokens) -> float:
    """Of the whole step. XLA counts the body of a loop once: one block, one iteration."""
    head = 6 * n_tokens * D_MODEL * VOCAB
    block = step.cost_analysis()["flops"] - head
    if isinstance(residual, MHC):
        # Forward, again in the backward pass, and about three times as much for the
        # gradient; an iteration is n^2 quotients and n (n - 1) sums, twice.
        n = residual.n_streams
        iteration = 2 * (2 * n * n - n)
        more = residual.joint_keywords["iterations"] - 2
        block += 2 * 5 * max(more, 0) * iteration * n_tokens
    return head + N_LAYERS * block


def seconds(step, *arguments) -> tuple[float, float]:
    """Of one step: by the clock, and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    jax.block_until_ready(step(*arguments))
    return time.perf_counter() - wall, time.process_time() - processor


def measure(names, n_tokens, rounds, console) -> dict[str, dict]:
    key = jax.random.key(0)
    shape = (n_tokens // SEQ_LEN, SEQ_LEN + 1)
    tokens = jax.random.randint(key, shape, 0, VOCAB)
    found, steps = {}, {}
    for name in names:
        start = time.perf_counter()
        steps[name] = compiled_step(SCHEMES[name], tokens)
        step = steps[name][0]
        memory = step.memory_analysis()
        found[name] = {
            "compile": time.perf_counter() - start,
            "flops": flops(step, SCHEMES[name], n_tokens),
            "memory": memory.temp_size_in_bytes,
            "seconds": [],
        }
        seconds(step, steps[name][1], tokens)  # the first run warms up
        console.print(f"compiled {name}", style="dim")
    turns = random.Random(0)
    for _ in range(rounds):
        for name in turns.sample(list(names), len(names)):
            step, params = steps[name]
            found[name]["seconds"].append(seconds(step, params, tokens))
    return found


def table_of(found: dict[str, dict]) -> Table:
    plain = found["plain"]
    table = Table(title=f"d_model {D_MODEL}, {N_LAYERS} layers, against plain")
    columns = ("scheme", "ms (min)", "time", "CPU time", "FLOPs", "memory", "MiB")
    for column in (*columns, "compile s"):
        table.add_column(column, justify="left" if column == "scheme" else "right")
    for name, row in found.items():
        pairs = list(zip(row["seconds"], plain["seconds"], strict=True))
        wall, processor = (
            statistics.median(a[k] / b[k] for a, b in pairs) for k in (0, 1)
        )
        table.add_row(
            name,
            f"{1e3 * min(row['seconds'])[0]:.0f}",
            f"{wall:.2f}",
            f"{processor:.2f}",
            f"{row['flops'] / plain['flops']:.3f}",
            f"{row['memory'] / plain['memory']:.2f}",
            f"{row['memory'] / 2**20:.0f}",
            f"{row['compile']:.1f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument(
        "--schemes", default=",".join(SCHEMES), help="separated by commas, as listed"
    )
    arguments = parser.parse_args()
    names = list(dict.fromkeys(["plain", *arguments.schemes.split(",")]))
    unknown = set(names) - set(SCHEMES)
    if unknown:
        parser.error(f"no scheme {unknown.pop()!r}, expected some of {list(SCHEMES)}")
    console = Console()
    console.print(table_of(measure(names, arguments.tokens, arguments.rounds, console)))


if __name__ == "__main__":
    main()
