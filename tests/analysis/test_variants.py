import pytest

from analysis.variants import (
    RunFacts,
    family_of,
    flatten,
    named_variants,
    variant_labels,
)


def run(norm="derf", placement="pre", seed=0, n_layers=4, family="train/M", **more):
    """A run whose config repeats its choices, as a resolved one does."""
    leaves = {
        "seed": seed,
        "name": "x",
        "log_every": 10,
        "runtime.layout": "map",
        "model.n_layers": n_layers,
        "model.norm._target_": f"blocks.norms.{norm}.{norm.title()}",
        "data.seed": seed,
        **more.pop("leaves", {}),
    }
    choices = {"norm": norm, "placement": placement, "optimizer": "adamw"}
    choices |= more.pop("choices", {})
    return RunFacts(family, choices, leaves, seed, n_layers, **more)


def test_choices_that_vary_are_joined_and_the_seed_is_not_one():
    runs = [
        run(n, p, s) for n in ("derf", "rms") for p in ("pre", "post") for s in (0, 1)
    ]
    assert variant_labels(runs) == [
        label
        for label in ("derf · pre", "derf · post", "rms · pre", "rms · post")
        for _ in (0, 1)
    ]


def test_a_site_is_named_and_its_default_is_not():
    site = "norm@model.ffn_norm"
    runs = [
        run(choices={site: None}),
        run(choices={site: "derf"}),
        run("rms", choices={site: None}),
    ]
    assert variant_labels(runs) == ["derf", "derf · ffn_norm=derf", "rms"]
    alone = [run(choices={site: None}), run(choices={site: "dyt"})]
    assert variant_labels(alone) == ["base", "ffn_norm=dyt"]


def test_scalars_count_only_where_equal_choices_differ_in_them():
    runs = [
        run("derf", leaves={"model.norm.alpha_init": 0.3}),
        run("derf", leaves={"model.norm.alpha_init": 0.5}),
        run("rms", leaves={"model.norm.eps": 1e-6}),
        run("ln", leaves={"model.norm.eps": 1e-5}),
    ]
    assert variant_labels(runs) == [
        "derf · alpha_init=0.3",
        "derf · alpha_init=0.5",
        "rms",
        "ln",
    ]


def test_numbers_are_short_but_never_rounded_together():
    rates = [0.001, 1e-5, 0.12345678, 0.12345679]
    runs = [run(leaves={"optimizer.learning_rate": rate}) for rate in rates]
    assert variant_labels(runs) == [
        "learning_rate=0.001",
        "learning_rate=1e-05",
        "learning_rate=0.12345678",
        "learning_rate=0.12345679",
    ]


def test_long_numbers_are_cut_where_they_stay_apart():
    rates = [0.0141421356, 0.70710678]
    runs = [run(leaves={"optimizer.learning_rate": rate}) for rate in rates]
    assert variant_labels(runs) == ["learning_rate=0.01414", "learning_rate=0.7071"]


def test_an_ambiguous_last_part_is_spelled_in_full():
    runs = [
        run(leaves={"model.attn_norm.eps": a, "model.ffn_norm.eps": b})
        for a, b in ((1e-5, 1e-5), (1e-5, 1e-6), (1e-6, 1e-5))
    ]
    assert (
        variant_labels(runs)[1]
        == "model.attn_norm.eps=1e-05 · model.ffn_norm.eps=1e-06"
    )
    assert len(set(variant_labels(runs))) == 3


def test_a_data_seed_of_its_own_counts_and_a_copied_seed_does_not():
    assert len(set(variant_labels([run(seed=0), run(seed=1)]))) == 1
    own = [run(leaves={"data.seed": 7}), run(leaves={"data.seed": 8})]
    assert variant_labels(own) == ["data.seed=7", "data.seed=8"]


def test_depth_is_an_axis_of_a_depth_family_and_a_variant_elsewhere():
    # DeepNorm's alpha follows from the depth: it must not break up the law.
    def pair(family):
        return [
            run(
                n_layers=n,
                family=family,
                leaves={"model.placement.alpha": (2 * n) ** 0.25},
            )
            for n in (6, 96)
        ]

    assert len(set(variant_labels(pair("depth/ResidualMLP")))) == 1
    labels = variant_labels(pair("train/LanguageModel"))
    assert len(set(labels)) == 2
    assert labels[1].startswith("n_layers=96")
    # What differs at one depth is a variant there too.
    both = [
        run(n_layers=n, family="depth/M", leaves={"init.scale": s})
        for n in (6, 96)
        for s in (1.0, 2.0)
    ]
    assert variant_labels(both) == ["scale=1", "scale=2"] * 2


def test_families_do_not_mix():
    runs = [
        run("derf"),
        run("rms"),
        run("derf", family="depth/M"),
        run("derf", "post", family="depth/M"),
    ]
    assert variant_labels(runs) == ["derf", "rms", "pre", "post"]


def test_runs_of_one_kind_are_named_by_norm_and_placement():
    assert variant_labels([run(seed=0), run(seed=1)]) == ["derf · pre"] * 2
    assert variant_labels([RunFacts("unknown/unknown")]) == ["all runs"]


def test_equal_choice_names_of_two_groups_are_told_apart():
    runs = [
        run("a", choices={"head": None, "tail": "none"}),
        run("a", choices={"head": "none", "tail": None}),
    ]
    assert variant_labels(runs) == ["tail=none", "head=none"]
    classes = [run(leaves={"model.norm._target_": f"{module}.Norm"}) for module in "ab"]
    assert variant_labels(classes) == [
        "model.norm._target_=a.Norm",
        "model.norm._target_=b.Norm",
    ]


def test_a_run_that_failed_before_its_choices_were_written_joins_its_siblings():
    failed = run("derf", seed=2)
    failed = RunFacts(failed.family, {}, failed.leaves, failed.seed, failed.n_layers)
    runs = [run("derf"), run("rms"), failed]
    assert variant_labels(runs)[2] == "derf"


@pytest.mark.parametrize(
    "group", ["experiment", "hydra/launcher", "runtime", "runtime/layout"]
)
def test_how_a_run_was_made_is_not_what_it_is(group):
    runs = [run(choices={group: "a"}), run(choices={group: "b"})]
    assert len(set(variant_labels(runs))) == 1


def test_data_that_differ_at_one_seed_are_told_apart():
    runs = [run(fingerprint="aaaaaaaa1111"), run(fingerprint="bbbbbbbb2222")]
    assert variant_labels(runs) == ["fingerprint=aaaaaaaa", "fingerprint=bbbbbbbb"]
    # Generated data may come from the seed itself.
    # A run that failed before its data were read says nothing about them.
    early = [run(fingerprint="a" * 12), run()]
    assert len(set(variant_labels(early))) == 1
    # What a key in the label explains is not said twice.
    keyed = [
        run(fingerprint=value * 12, leaves={"data.order": value}) for value in "ab"
    ]
    assert variant_labels(keyed) == ["order=a", "order=b"]
    seeded = [run(seed=0, fingerprint="a" * 12), run(seed=1, fingerprint="b" * 12)]
    assert len(set(variant_labels(seeded))) == 1


def test_family_is_task_and_model_class():
    config = {
        "task": {"_target_": "experiments.tasks.depth.Depth"},
        "model": {"_target_": "blocks.residual_mlp.ResidualMLP"},
    }
    assert family_of(config) == "depth/ResidualMLP"
    assert family_of({}) == "unknown/unknown"
    assert family_of({"task": None, "model": {"_target_": 3}}) == "unknown/unknown"


def test_flatten_keeps_scalars_and_writes_lists_as_json():
    node = {"a": {"b": 1, "c": {"d": None}}, "e": [1, {"f": 2}], "g": "x"}
    assert dict(flatten(node)) == {
        "a.b": 1,
        "a.c.d": None,
        "e": '[1, {"f": 2}]',
        "g": "x",
    }


def test_many_variants_leave_out_what_most_of_them_have():
    """Nine placements under one norm, and one of them under another: the labels name
    the placement, and the norm where it is not the usual one."""
    names = [f"place{i}" for i in range(9)]
    runs = [run("derf", p) for p in names] + [run("rms", "place3")]
    named = named_variants(runs)
    assert [label for label, _ in named] == [*names, "rms · place3"]
    assert {usual for _, usual in named} == {"norm=derf"}


def test_few_variants_are_named_in_full():
    runs = [run("derf", f"place{i}") for i in range(7)] + [run("rms", "place3")]
    named = named_variants(runs)
    assert named[0] == ("derf · place0", "")


def test_nothing_is_left_out_that_tells_variants_apart():
    """Most have a feed-forward norm of their own, the same; some have none."""
    site = "norm@model.ffn_norm"
    runs = [
        run(p, choices={site: chosen})
        for p in "abcde"
        for chosen in (("derf", None) if p != "e" else ("derf",))
    ]
    named = named_variants(runs)
    assert named[0][0] == "a · ffn_norm=derf"
    assert named[1] == ("a", "")


def test_a_variant_of_usual_parts_alone_keeps_its_label():
    many = [run(f"norm{i}", "post") for i in range(8)]
    runs = [run("derf", f"place{i}") for i in range(8)] + many
    named = named_variants([*runs, run("derf", "post")])
    assert named[0][0] == "place0"
    assert named[8][0] == "norm0"
    assert named[-1][0] == "derf · post"
    assert len({label for label, _ in named}) == len(named)
