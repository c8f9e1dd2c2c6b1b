"""Everything compiled for one static signature, as pure functions of one member.

A member is a seed and the traced numbers of its config. Its state is a flat dict of
parameters, a flat dict of other model state, the optimizer's state and the step. All
functions here are for one member; `experiments.execution` runs them over many.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from blocks.grown_stack import GrownStack
from blocks.looking import set_looking
from blocks.modes import set_training
from blocks.parameters import Layout, layout_of, path_name
from experiments.data.dataset import Dataset
from experiments.errors import ConfigError
from experiments.guards.guard import guard_of
from experiments.parts import Part
from experiments.probing import probe_of
from experiments.quantities import gradient_norms, in_layer_order, quantities
from experiments.sharding import split_batch, whole_parameters
from experiments.spectra import heads_of, spectra

CHUNK = 50  # optimizer steps in one call: the size of the metrics buffer

# Streams of random numbers of a member, all from its seed.
INIT, TRAIN, VALIDATION, PROBE = range(4)


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a program depends on: two runs with equal signatures share one program."""

    model: Part
    data: Part
    optimizer: Part
    schedule: Part
    task: Part
    batch_size: int
    seq_len: int
    data_fingerprint: str
    traced: tuple[tuple[str, bool], ...]  # inputs: path, whether it is an integer
    averaging: Part | None = None
    accumulate: int = 1
    capacity: int | None = None  # blocks there is room for, where depth is an input

    @property
    def x64(self) -> bool:
        """Whether the program computes in float64 (and its numbers come as such)."""
        return self.model.get("dtype") == "float64"


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    """What training carries from step to step.

    `average` is empty without averaging, `guard` without a guard of the steps.
    """

    params: dict[str, jax.Array]
    rest: dict[str, jax.Array]
    opt: Any
    step: jax.Array
    average: dict[str, jax.Array]
    guard: dict[str, jax.Array]


class Program:
    """Pure functions of one member; nothing is compiled or allocated here.

    Raises:
        ConfigError: the parts do not fit together.
    """

    def __init__(self, signature: Signature, dataset: Dataset):
        self.signature = signature
        self.dataset = dataset
        self.source = signature.data.build({}, "data")
        any_value = {path: 1 for path, _ in signature.traced}  # shapes depend on none
        self._any_value = any_value
        self.layout_at = functools.cache(self._layout_at)
        self.layout: Layout = self.layout_at(signature.capacity)
        optimizer = signature.optimizer.build(any_value, "optimizer")
        if signature.averaging and hasattr(optimizer, "evaluated"):
            raise ConfigError(
                f"averaging: {signature.optimizer.name} averages by itself; leave it out"
            )
        try:
            self.groups: dict[str, str] = optimizer.groups(self.layout.specs)
        except ValueError as error:
            raise ConfigError(f"optimizer: {error}") from None
        model = nnx.merge(self.layout.graphdef, self.layout.params, self.layout.state)
        # What an optimizer that goes on behind its update has to know of the model.
        try:
            self.facts = optimizer.facts_of(model) if looks_of(optimizer) else None
        except ValueError as error:
            raise ConfigError(f"optimizer: {error}") from None
        self.tap_shape: tuple[int, int] = model.blocks.tap_shape
        self.places: dict[str, range] = model.blocks.places
        self.probed = probe_of(signature.task)
        self.heads = heads_of(model)
        # State that a probe shows: the load of experts, say.
        self.shown_state: list[str] = [
            path_name(path)
            for path, variable in nnx.to_flat_state(self.layout.state)
            if variable.get_metadata().get("probe", False)
        ]
        # Where tokens meet outside attention, as in a norm over the batch: such a
        # causal model sees the future while it trains.
        self.mixing_tokens: list[str] = sorted(
            path_name(path)
            for path, node in nnx.iter_graph(model)
            if getattr(node, "mixes_tokens", False)
        )

    def _layout_at(self, n_layers: int | None) -> Layout:
        """The model's parameters; at a depth, where depth is an input (else None).

        Raises:
            ConfigError: the model cannot be built from its parts.
        """
        values = dict(self._any_value)
        if n_layers is not None:
            values["model.n_layers"] = n_layers
        with jax.enable_x64(self.signature.x64):
            try:
                return layout_of(lambda: self._build_model(values, jnp.uint32(0)))
            except (ValueError, TypeError) as error:
                raise ConfigError(f"model: {error}") from None

    @property
    def n_params(self) -> int:
        return sum(spec.size for spec in self.layout.specs.values())

    @property
    def item(self) -> str:
        """What is counted: a token, or a row or an image of a source without any."""
        return "token" if self.dataset.vocab_size is not None else self.dataset.unit

    @property
    def items_per_batch(self) -> int:
        """How many of `item` a batch has."""
        if self.dataset.vocab_size is not None:
            return self.signature.batch_size * self.signature.seq_len
        batch = jax.eval_shape(self.probe_batch, jnp.uint32(0), self.dataset.arrays)
        return jax.tree.leaves(batch)[0].shape[0]

    @property
    def dtype(self):
        """Of parameters, optimizer state and traced numbers."""
        return jnp.float64 if self.signature.x64 else jnp.float32

    # -- pieces ----------------------------------------------------------------

    def _build_model(self, values: dict, seed: jax.Array, **more) -> nnx.Module:
        make = functools.partial(self.signature.model.build(values, "model"), **more)
        rngs = nnx.Rngs(params=jax.random.fold_in(jax.random.key(seed), INIT))
        if self.dataset.vocab_size is None:
            return make(rngs=rngs)
        vocab_size = self.signature.model["vocab_size"] or self.dataset.vocab_size
        return make(vocab_size=vocab_size, rngs=rngs)

    def _optimizer(self, values: dict, steps: jax.Array) -> tuple[Any, Any]:
        """The optax transform of the traced numbers, and the schedule's multiplier."""
        optimizer = self.signature.optimizer.build(values, "optimizer")
        schedule = self.signature.schedule.build(values, "schedule")
        multiplier = functools.partial(schedule, steps=steps, dtype=self.dtype)
        return optimizer, multiplier

    def _averaging(self, values: dict):
        averaging = self.signature.averaging
        return averaging and averaging.build(values, "averaging")

    def batch_key(self, seed, stream: int, i) -> jax.Array:
        """The random numbers of batch number `i` of a stream: of (seed, i) alone."""
        key = jax.random.fold_in(jax.random.key(seed), stream)
        return jax.random.fold_in(key, i)

    def _batch(self, data: dict, seed, stream: int, i, split: str):
        """Batch number `i` of a stream: a pure function of (source, seed, i).

        Of streamed data `data` are the batches themselves, of the block that `i` is in.
        """
        if self.dataset.stream is not None:
            block = data["batches"]
            batch = jax.lax.dynamic_index_in_dim(block, i % len(block), keepdims=False)
            batch = batch.astype(jnp.int32)
            finish = getattr(self.dataset.stream, "finish", None)
            if finish is None:
                return batch
            return finish(batch, self.batch_key(seed, stream, i), split=split)
        return self.source.batch(
            data,
            self.batch_key(seed, stream, i),
            split=split,
            batch_size=self.signature.batch_size,
            seq_len=self.signature.seq_len,
        )

    def _loss(
        self, params: dict, rest: dict, batch, taps=None, *, is_training=True, looks=()
    ):
        batch = split_batch(batch)
        model = self._model(params, rest, is_training=is_training, looks=looks)
        loss, measured = model.loss(batch, taps)
        _, rest = self.layout.split(model)
        return loss, (rest, measured)

    def _model(self, params: dict, rest: dict, *, is_training: bool, looks=()):
        """The model that holds these parameters."""
        params = whole_parameters(params, self.layout.specs)
        model = self.layout.merge(params, rest)
        set_training(model, is_training)
        set_looking(model, looks)
        return model

    # -- functions of a member -------------------------------------------------

    def init(self, seed: jax.Array, values: dict, steps: jax.Array) -> State:
        """The state before the first step."""
        model = self._build_model(values, seed)
        params, rest = self.layout.split(model)
        params = {path: x.astype(self.dtype) for path, x in params.items()}
        return self.begin(params, rest, values, steps)

    def begin(self, params: dict, rest: dict, values: dict, steps: jax.Array) -> State:
        """The state before the first step, of parameters that are there already."""
        optimizer, multiplier = self._optimizer(values, steps)
        opt = optimizer.transform(self.layout.specs, multiplier).init(params)
        averaging = self._averaging(values)
        average = averaging.init(params) if averaging else {}
        guard = guard_of(self.signature.task)
        watched = guard.init(self.dtype) if guard else {}
        return State(params, rest, opt, jnp.int32(0), average, watched)

    def train_steps(
        self, state: State, seed, values: dict, steps, n, data: dict
    ) -> tuple[State, dict[str, jax.Array]]:
        """`n` <= CHUNK optimizer steps.

        `n` is traced: every chunk length runs the same executable, so where a run is
        cut into chunks changes nothing, not even the last bit.

        Returns:
            The new state and arrays [CHUNK] of which the first `n` are filled: `loss`
            (nats per token, before the update), `grad_norm` (before clipping) and
            `learning_rate`.
        """
        return self._steps(state, seed, values, steps, n, data, probe=False)

    def probed_steps(
        self, state: State, seed, values: dict, steps, n, data: dict
    ) -> tuple[State, dict[str, jax.Array]]:
        """`train_steps` that also looks inside: the quantities of `probe` [CHUNK, ...].

        They are those of the step's own batch and gradient, so they cost a few percent
        of a step where a gradient of their own would cost another one. Which there are
        the task's probe says (`experiments.probing`).
        """
        return self._steps(state, seed, values, steps, n, data, probe=True)

    def _steps(self, state, seed, values, steps, n, data, *, probe: bool):
        optimizer, multiplier = self._optimizer(values, steps)
        transform = optimizer.transform(self.layout.specs, multiplier)
        averaging = self._averaging(values)
        guard = guard_of(self.signature.task)

        def step(state: State) -> tuple[State, dict[str, jax.Array]]:
            batch = self._batch(data, seed, TRAIN, state.step, "train")
            loss, rest, grads, measured, probes = self._gradient(
                state, batch, probe, looks_of(optimizer)
            )
            updates, opt = transform.update(grads, state.opt, state.params)
            params = optax.apply_updates(state.params, updates)
            if looks_of(optimizer):
                params = optimizer.after_update(
                    params,
                    measured,
                    specs=self.layout.specs,
                    facts=self.facts,
                    places=self.places,
                )
            if probe and self.probed.spectra:
                specs = self.layout.specs
                found = spectra(state.params, updates, specs, self.heads)
                probes |= in_layer_order(found, self.places)
            count = guard.count(state) if guard else state.step
            row = {
                "loss": loss,
                "grad_norm": optax.global_norm(grads),
                "learning_rate": optimizer.learning_rate * multiplier(count),
            }
            average = state.average
            if averaging:
                average = averaging.update(average, params, state.step + 1)
            after = State(params, rest, opt, state.step + 1, average, state.guard)
            if guard:
                after, told = guard.after(state, after, row)
                row |= told
            return after, {**row, **probes}

        def body(i, carry):
            state, rows = carry
            state, row = step(state)
            rows = {k: rows[k].at[i].set(row[k].astype(rows[k].dtype)) for k in row}
            return state, rows

        # Traced once, for the shapes of the rows and for the loop; inlined, it leaves
        # no call behind.
        step = jax.jit(step, inline=True)
        _, row = jax.eval_shape(step, state)
        rows = {
            k: jnp.full((CHUNK, *x.shape), jnp.nan, self.dtype) for k, x in row.items()
        }
        return jax.lax.fori_loop(0, n, body, (state, rows))

    def _gradient(self, state: State, batch, probe: bool, looks: tuple[str, ...] = ()):
        """Loss, new other state, gradients, measurements, quantities of a probe or none.

        A batch is taken in `accumulate` equal parts, one after the other. `looks` are
        measured whether there is a probe or not.
        """
        k = self.signature.accumulate
        if probe:
            looks = tuple(dict.fromkeys([*looks, *self.probed.looks]))
        if k == 1:
            found = self._gradient_of(state.params, state.rest, batch, probe, looks)
        else:
            found = self._accumulated(state, batch, k, probe, looks)
        loss, rest, grads, measured, tap_squares = found
        if not probe:
            return loss, rest, grads, measured, {}
        squares = {}
        for path, grad in grads.items():
            n_stacked = self.layout.specs[path].n_stacked
            axes = tuple(range(min(n_stacked, 1), grad.ndim))
            squares[path] = jnp.sum(jnp.square(grad), axis=axes)
        probes = quantities(measured, tap_squares, self.tap_shape[0])
        probes |= gradient_norms(squares, self.places)
        shown = {f"state/{path}": rest[path] for path in self.shown_state}
        probes |= in_layer_order(shown, self.places)
        return loss, rest, grads, measured, probes

    def _gradient_of(self, params: dict, rest: dict, batch, probe: bool, looks):
        """Loss, other state, gradients, measurements, and of a probe squares of taps.

        Without a probe and looks nothing is measured.
        """
        loss_of = functools.partial(self._loss, looks=looks)
        if not probe:
            (loss, (rest, measured)), grads = jax.value_and_grad(loss_of, has_aux=True)(
                params, rest, batch
            )
            return loss, rest, grads, (measured if looks else {}), ()
        taps = jnp.zeros(self.tap_shape, self.dtype)
        (loss, (rest, measured)), (grads, tap_squares) = jax.value_and_grad(
            loss_of, argnums=(0, 3), has_aux=True
        )(params, rest, batch, taps)
        return loss, rest, grads, measured, tap_squares

    def _accumulated(self, state: State, batch, k: int, probe: bool, looks):
        """`_gradient_of` of the mean loss of `k` equal parts of the batch.

        Measurements are means over the parts, and maxima where they are maxima.
        """
        parts = jax.tree.map(lambda x: x.reshape(k, -1, *x.shape[1:]), batch)

        def body(carry, part):
            rest, total = carry
            loss, rest, grads, *others = self._gradient_of(
                state.params, rest, part, probe, looks
            )
            # Added as they come: k gradients side by side would be k times the memory.
            return (rest, jax.tree.map(jnp.add, total, grads)), (loss, *others)

        zeros = jax.tree.map(jnp.zeros_like, state.params)
        (rest, total), found = jax.lax.scan(body, (state.rest, zeros), parts)
        loss, measured, tap_squares = found
        measured = {
            name: jnp.max(x, axis=0) if name.endswith("_max") else jnp.mean(x, axis=0)
            for name, x in measured.items()
        }
        # A part's share of the loss is 1 / k, and with it that of every gradient.
        tap_squares = jax.tree.map(lambda x: jnp.sum(x, axis=0) / k**2, tap_squares)
        grads = jax.tree.map(lambda x: x / k, total)
        return jnp.mean(loss), rest, grads, measured, tap_squares

    def evaluate(
        self, state: State, seed, values: dict, steps, n_batches, data: dict
    ) -> dict[str, jax.Array]:
        """Means over the first `n_batches` validation batches of the seed.

        Of the average of the weights where there is one, else of those that the
        optimizer says are the ones to use.

        Returns:
            `loss`, and what else the model's `evaluate` measures, if it has one.
        """
        params = self._evaluated(state, values, steps)

        def found(i) -> dict[str, jax.Array]:
            batch = self._batch(data, seed, VALIDATION, i, "validation")
            if not measures_more:
                loss, _ = self._loss(params, state.rest, batch, is_training=False)
                return {"loss": loss}
            model = self._model(params, state.rest, is_training=False)
            return model.evaluate(split_batch(batch))

        def body(i, total):
            return jax.tree.map(lambda t, x: t + x.astype(t.dtype), total, found(i))

        measures_more = hasattr(self.signature.model.cls, "evaluate")
        # The names cost a trace, which a model that measures the loss alone is spared.
        names = jax.eval_shape(found, jnp.int32(0)) if measures_more else ("loss",)
        zeros = {name: jnp.zeros((), self.dtype) for name in names}
        total = jax.lax.fori_loop(0, n_batches, body, zeros)
        return jax.tree.map(lambda x: x / n_batches, total)

    def _evaluated(self, state: State, values: dict, steps) -> dict[str, jax.Array]:
        if self.signature.averaging:
            return state.average
        optimizer, _ = self._optimizer(values, steps)
        if hasattr(optimizer, "evaluated"):
            return optimizer.evaluated(state.opt, state.params)
        return state.params

    def probe(self, state: State, seed, data: dict) -> dict[str, jax.Array]:
        """Per-layer measurements of the loss on the seed's probe batch.

        Returns:
            quantity -> array: gradients by parameter (`grad_norm/...`, [n_layers] for
            parameters of the stack, [] otherwise), `stream_grad_norm`,
            `stream_mean_square`, `branch_mean_square` [n_layers, sub-layers],
            `input_mean_square`, `branch_gain`, `grad_norm/total`, `loss` [].
        """
        batch = self.probe_batch(seed, data)
        loss, _, _, _, probes = self._gradient(state, batch, True)
        return {"loss": loss, **probes}

    def probe_at_any_depth(self, seed, values: dict, steps, data: dict):
        """`probe` of the untrained model with `model.n_layers` among the values.

        Arrays over layers have `capacity` entries and are zero from n_layers on.
        """
        del steps
        stack = functools.partial(GrownStack, capacity=self.signature.capacity)
        model = self._build_model(values, seed, stack=stack)
        graphdef, params, rest = nnx.split(model, nnx.Param, ...)
        params = jax.tree.map(lambda x: x.astype(self.dtype), params)
        batch = self.probe_batch(seed, data)

        def loss_of(params, taps):
            return nnx.merge(graphdef, params, rest).loss(batch, taps)

        (loss, measured), (grads, tap_grads) = jax.value_and_grad(
            loss_of, argnums=(0, 1), has_aux=True
        )(params, model.blocks.taps(self.dtype))
        squares = {
            path_name(path): jnp.sum(jnp.square(g[...]))
            for path, g in nnx.to_flat_state(grads)
        }
        for path, square in tap_grads["params"].items():
            squares[f"blocks/layers/{path}"] = square
        n_layers = values["model.n_layers"]
        probes = quantities(measured, tap_grads["stream"], n_layers)
        probes |= gradient_norms(squares)
        return {"loss": loss, **probes}

    def probe_batch(self, seed, data: dict):
        """The batch that a seed is probed on."""
        return self._batch(data, seed, PROBE, 0, "train")

    def loss_of_a_batch(self, params: dict, rest: dict, seed, data: dict) -> jax.Array:
        """The forward pass of one batch, for counting what it costs."""
        return self._loss(params, rest, self.probe_batch(seed, data))[0]

    def probe_at_init(self, seed, values: dict, steps, data: dict):
        """`probe` of the untrained model, as one program."""
        return self.probe(self.init(seed, values, steps), seed, data)


def looks_of(optimizer) -> tuple[str, ...]:
    """What `optimizer.after_update` needs of the forward pass; () where there is none."""
    return getattr(optimizer, "looks", ())
