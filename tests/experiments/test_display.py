"""What a person sees while runs go on, and at the end."""

import io
import time

import pytest
from rich.console import Console

from experiments import api, display
from experiments.display import Display, print_summary
from experiments.members import Member
from experiments.run import RunDirectory


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=140)


@pytest.fixture(scope="module")
def members():
    """members(overrides, ...) -> runs that completed with loss 2 and val loss 3."""

    def members(*overrides):
        found = []
        for config in api.compose(list(overrides)):
            member = Member(config, RunDirectory(config, "f"))
            member.state, member.step = "completed", config.steps
            member.loss, member.val_loss = 2.0, 3.0
            found.append(member)
        return found

    return members


def printed(console) -> list[str]:
    return console.file.getvalue().splitlines()


# -- while they run ------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(display, "PLAIN_EVERY", 0.01)


def lines_of(console, members, change) -> list[str]:
    with Display(members, console):
        time.sleep(0.05)
        change()
        time.sleep(0.1)
    return printed(console)


def test_without_a_terminal_a_line_says_where_the_sweep_is(console, members, quick):
    some = members("seed=0,1,2", "steps=100")
    some[0].loss = None
    some[2].state, some[2].step = "planned", 0
    for member in some[:2]:
        member.state, member.step, member.loss = "running", 10, None

    def advance():
        some[0].state = "completed"
        some[1].step, some[1].loss, some[1].tokens_per_second = 50, 0.0, 1234.5

    lines = lines_of(console, some, advance)
    assert lines[0] == "0/3 runs  step 20/300"
    assert lines[-1].startswith("1/3 runs  step 150/300  1,234 tokens/s  loss 0.000  ")
    assert lines[-1].endswith(" s left")


def test_what_is_counted_has_its_name(console, members, quick):
    some = members("seed=0,1")
    for member, item in zip(some, ("image", "image"), strict=True):
        member.state, member.step = "running", 0
        member.tokens_per_second, member.item = 500.0, item
    assert "1,000 images/s" in lines_of(console, some, lambda: None)[-1]
    some[0].item = "token"
    console.file.truncate(0)
    assert "1,000 items/s" in lines_of(console, some, lambda: None)[-1]


def test_losses_of_several_runs_are_a_range(console, members, quick):
    some = members("seed=0,1")
    for member, loss in zip(some, (2.5, 1.25), strict=True):
        member.state, member.loss, member.step = "running", loss, 0
    assert "loss 1.250..2.500" in lines_of(console, some, lambda: None)[-1]


def test_a_measurement_counts_as_one_step(console, members, quick):
    some = members("model=residual_mlp", "task=depth", "seed=0,1")
    some[1].state, some[1].step = "planned", 0
    assert lines_of(console, some, lambda: None)[-1].startswith("1/2 runs  step 1/2")


def test_on_a_terminal_there_is_a_bar(members):
    console = Console(file=io.StringIO(), width=140, force_terminal=True)
    some = members("seed=0,1", "steps=100")
    with Display(some, console):
        time.sleep(0.05)
    assert "2/2 runs" in console.file.getvalue()
    assert "200/200" in console.file.getvalue()


# -- as each ends --------------------------------------------------------------


@pytest.mark.parametrize(
    "changes, line",
    [
        (dict(state="completed"), None),
        (dict(state="completed", note="finished before"), None),
        (dict(state="completed", note="continued from step 50"), "continued from step"),
        (dict(state="busy", note="another launcher is running it"), "another launcher"),
        (dict(state="diverged", diverged_step=7), "diverged at step 7"),
        (dict(state="preempted", step=60), "stopped and saved at step 60"),
        # Brackets are Rich's markup: [d] would vanish and [/] would raise.
        (
            dict(state="failed", error="ValueError: [d] and [/] and [red]"),
            "failed: ValueError: [d] and [/] and [red]",
        ),
    ],
)
def test_a_run_that_did_not_simply_complete_gets_a_line(
    console, members, changes, line
):
    (member,) = members("norm=derf")
    for key, value in changes.items():
        setattr(member, key, value)
    Display([member], console).on_end(member)
    if line is None:
        assert printed(console) == []
    else:
        (told,) = printed(console)
        assert told.startswith(f"{member.directory.path.name}: ")
        assert line in told


def test_a_long_failure_stays_on_one_line(console, members):
    (member,) = members()
    member.state, member.error = "failed", "x" * 500
    Display([member], console).on_end(member)
    assert len(printed(console)) == 1


# -- at the end ----------------------------------------------------------------


def summary(console, members) -> tuple[list[str], str]:
    """Rows of the table without its header, and the last line."""
    print_summary(members, console)
    *table, last = printed(console)
    return [line.rstrip() for line in table[1:]], last


def test_a_few_runs_have_a_row_each_labelled_by_what_varies(console, members):
    some = members(
        "norm=rmsnorm,derf", "optimizer.learning_rate=0.1,0.2", "model=tiny", "steps=7"
    )
    some[3].state, some[3].loss, some[3].val_loss = "diverged", float("nan"), None
    rows, last = summary(console, some)
    assert [row.split() for row in rows] == [
        ["norm=rmsnorm", "learning_rate=0.1", "completed", "7", "2", "3"],
        ["norm=rmsnorm", "learning_rate=0.2", "completed", "7", "2", "3"],
        ["norm=derf", "learning_rate=0.1", "completed", "7", "2", "3"],
        ["norm=derf", "learning_rate=0.2", "diverged", "7", "nan"],
    ]
    assert last == "3 completed, 1 diverged; everything is in outputs/train/"


def test_a_run_alone_is_called_by_its_folder(console, members):
    (member,) = members("norm=derf")
    member.note = "finished before"
    rows, last = summary(console, [member])
    assert rows[0].startswith(f"norm=derf-{member.directory.identity}")
    assert last == "completed (before); everything is in outputs/train/"


def test_seeds_of_many_runs_share_a_row(console, members):
    some = members("norm=rmsnorm,derf", "seed=range(0,25)")
    for i, member in enumerate(some):
        member.loss = float(i)
    some[30].state = "failed"
    rows, last = summary(console, some)
    assert [row.split() for row in rows] == [
        ["norm=rmsnorm", "25", "completed", "1000", "12", "3"],  # mean of 0 .. 24
        ["norm=derf", "24", "completed,", "1", "failed", "1000", "37", "3"],
    ]
    assert last.startswith("49 completed, 1 failed; ")


def test_many_seeds_of_one_config_are_one_row(console, members):
    rows, _ = summary(console, members("seed=range(0,45)"))
    assert [row.split() for row in rows] == [
        ["all", "runs", "45", "completed", "1000", "2", "3"]
    ]


def test_a_table_too_long_is_cut_and_shows_trouble_first(console, members):
    some = members("optimizer.learning_rate=range(1,61)")
    some[50].state = "failed"
    rows, _ = summary(console, some)
    assert len(rows) == display.MAX_ROWS + 1
    assert rows[0].split()[:2] == ["learning_rate=51", "failed"]
    assert rows[-1] == "... and 20 more"


def test_families_have_tables_of_their_own(console, members):
    some = [
        *members("norm=rmsnorm,derf"),
        *members("model=residual_mlp", "task=depth", "placement=pre,post"),
    ]
    print_summary(some, console)
    text = console.file.getvalue()
    assert text.index("Train LanguageModel") < text.index("norm=derf")
    assert text.index("norm=derf") < text.index("Depth ResidualMLP")
    assert text.index("Depth ResidualMLP") < text.index("placement=post")


def test_each_folder_is_named_with_its_own_runs(console, members):
    some = [*members("name=a", "seed=0,1"), *members("name=b")]
    some[2].state = "failed"
    print_summary(some, console)
    assert printed(console)[-2:] == [
        "2 completed; everything is in outputs/a/",
        "failed; everything is in outputs/b/",
    ]


def test_brackets_in_a_label_stay(console, members):
    rows, _ = summary(console, members("+tags.x=[b],[c]"))
    assert [row.split()[0] for row in rows] == ["x=[b]", "x=[c]"]
