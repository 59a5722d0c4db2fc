from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scalesearch.definition import load_definition, parse_definition
from scalesearch.errors import DefinitionError

Edit = Callable[..., str]


def mistakes(text: str) -> list[str]:
    """The lines of the error that a definition is refused with, each without its file."""
    with pytest.raises(DefinitionError) as caught:
        parse_definition(text, source="study.toml", default_name="study")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("study.toml: ") for line in lines)
    return [line.removeprefix("study.toml: ") for line in lines]


UNKNOWN_KEYS = [
    ("[workload]", "nmae = 1\n[workload]", "nmae", "name"),
    ("[trial]", "[trail]", "trail", "trial"),
    ('optimizer = "', 'optimiser = "', "workload.optimiser", "optimizer"),
    ("target =", "goal = 1\ntarget =", "objective.goal", None),
    ("sampler =", "samplr =", "search.samplr", "sampler"),
    ("decays =", "decay =", "search.schedule.decay", "decays"),
    ("low = 8", "low = 8, lwo = 9", "search.global_batch_size.lwo", "low"),
    ("low = 1e-3", "low = 1e-3, hgih = 9", "search.learning_rate.hgih", "high"),
    ('low = "1 epochs"', 'low = "1 epochs", hihg = 9', "search.schedule.boundaries.hihg", "high"),
    ("momentum = 0.9", "momentum = { low = 0.5, high = 0.9, scal = 1 }", "search.momentum.scal", "scale"),
    ("momentum = 0.8", "momentun = 0.8", "baseline.momentun", "momentum"),
    ("evaluation_ratio", "evalution_ratio", "trial.evalution_ratio", "evaluation_ratio"),
    ("wall_clock", "wall_clok", "budget.wall_clok", "wall_clock"),
    ("seed", "sed", "run.sed", "seed"),
]


@pytest.mark.parametrize(("old", "new", "key", "near"), UNKNOWN_KEYS)
def test_an_unknown_key_is_named_with_the_nearest_known_one(
    edit: Edit, old: str, new: str, key: str, near: str | None
) -> None:
    known = "known here: `metric`, `direction`, `target`, `minimize`, `crossing`"
    hint = f"did you mean `{near}`?" if near else known
    assert f"unknown key `{key}`: {hint}" in mistakes(edit(old, new))


def test_the_keys_known_at_the_top(edit: Edit) -> None:
    [mistake] = mistakes(edit("[workload]", "xyz = 1\n[workload]"))
    assert mistake == (
        "unknown key `xyz`: known here: `name`, `workload`, `objective`, `search`, `baseline`, `trial`, `budget`, `run`"
    )


AMOUNT = 'expected a positive amount such as "20 epochs", "5e6 examples" or "50 %"'
DURATION = 'expected a duration such as "90s", "30m", "2h" or "1h30m"'
BOUNDS = "a table with the keys `low`, `high`, `scale`"
MISTAKES = [
    # wrong type
    ('name = "quick"', "name = 5", "`name = 5`: must be a string"),
    ("options = { hidden_units = 64 }", "options = 3", "`workload.options = 3`: must be a table"),
    ('metric = "val/classification_error"', "metric = 3", "`objective.metric = 3`: must be a string"),
    ("low = 8", "low = 8.5", "`search.global_batch_size.low = 8.5`: must be a whole number"),
    ("low = 8", 'low = "8"', '`search.global_batch_size.low = "8"`: must be a whole number'),
    ("low = 8", "low = true", "`search.global_batch_size.low = true`: must be a whole number"),
    (
        "{ low = 8, high = 64 }",
        "8",
        "`search.global_batch_size = 8`: must be a table with the keys `low`, `high`, `multiple_of`",
    ),
    ("low = 1e-3", 'low = "a"', '`search.learning_rate.low = "a"`: must be a number'),
    ("{ low = 1e-3, high = 1.0 }", "0.1", f"`search.learning_rate = 0.1`: must be {BOUNDS}"),
    ('["50 %", "75 %"]', '"50 %"', '`baseline.boundaries = "50 %"`: must be a list'),
    ('"75 %"]', '"late"]', f'`baseline.boundaries.1 = "late"`: {AMOUNT}'),
    ("trials = 40", "trials = 2.5", "`budget.trials = 2.5`: must be a whole number"),
    # out of range
    ("low = 8", "low = 0", "`search.global_batch_size.low = 0`: must be greater than or equal to 1"),
    ("low = 1e-3", "low = 0", "`search.learning_rate.low = 0`: must be greater than 0"),
    ("high = 1.0", "high = inf", "`search.learning_rate.high = inf`: must be a finite number"),
    ("decays = 2", "decays = 4", "`search.schedule.decays = 4`: must be less than or equal to 3"),
    ("evaluation_ratio = 1.1", "evaluation_ratio = 1", "`trial.evaluation_ratio = 1`: must be greater than 1"),
    ("seed = 3", "seed = -1", "`run.seed = -1`: must be greater than or equal to 0"),
    ("trials = 40", "trials = 0", "`budget.trials = 0`: must be greater than or equal to 1"),
    ("momentum = 0.8", "momentum = 1", "`baseline.momentum = 1`: must be less than 1"),
    ("decay_factor = 0.2", "decay_factor = 2", "`baseline.decay_factor = 2`: must be less than or equal to 1"),
    # low > high
    (
        "{ low = 8, high = 64 }",
        "{ low = 64, high = 8 }",
        "`search.global_batch_size`: `low <= high` must hold, but got low = 64, high = 8",
    ),
    (
        "{ low = 1e-3, high = 1.0 }",
        "{ low = 1, high = 0.1 }",
        "`search.learning_rate`: `low <= high` must hold, but got low = 1, high = 0.1",
    ),
    # not a power of two
    (
        "high = 64",
        "high = 63",
        "`search.global_batch_size`: without `multiple_of`, low and high must be powers of two, but got 8 and 63",
    ),
    # fields of several kinds
    ("momentum = 0.9", "momentum = 1.0", "`search.momentum = 1.0`: must be less than 1"),
    ("momentum = 0.9", "momentum = -0.1", "`search.momentum = -0.1`: must be greater than or equal to 0"),
    ("momentum = 0.9", 'momentum = "high"', f'`search.momentum = "high"`: must be a number or {BOUNDS}'),
    ("momentum = 0.9", "momentum = { low = 0.5, high = 1.0 }", "`search.momentum.high = 1.0`: must be less than 1"),
    ("momentum = 0.9", "momentum = { low = 0.5 }", "`search.momentum.high` is missing"),
    (
        "momentum = 0.9",
        "momentum = { low = 0.9, high = 0.5 }",
        "`search.momentum`: `low <= high` must hold, but got low = 0.9, high = 0.5",
    ),
    ("decay_factor = 0.1", "decay_factor = -1", "`search.schedule.decay_factor = -1`: must be greater than 0"),
    ("decay_factor = 0.1", "decay_factor = nan", "`search.schedule.decay_factor = nan`: must be a finite number"),
    ("decay_factor = 0.1", 'decay_factor = "x"', f'`search.schedule.decay_factor = "x"`: must be a number or {BOUNDS}'),
    ('replicas = "all"', 'replicas = "al"', '`run.replicas = "al"`: must be a whole number or "all"'),
    ('replicas = "all"', "replicas = 0", "`run.replicas = 0`: must be greater than or equal to 1"),
    ('replicas = "all"', "replicas = true", '`run.replicas = true`: must be a whole number or "all"'),
    ("target = 0.1", 'target = "basline"', '`objective.target = "basline"`: must be a number or "baseline"'),
    ("target = 0.1", "target = nan", "`objective.target = nan`: must be a finite number"),
    ("target = 0.1", "target = true", '`objective.target = true`: must be a number or "baseline"'),
    # amounts and durations
    ('low = "1 epochs"', 'low = "1 epoks"', f'`search.schedule.boundaries.low = "1 epoks"`: {AMOUNT}'),
    ('high = "30 epochs"', "high = inf", f"`search.schedule.boundaries.high = inf`: {AMOUNT}"),
    ('max_examples = "30 epochs"', 'max_examples = "30"', f'`trial.max_examples = "30"`: {AMOUNT}'),
    ('wall_clock = "75s"', 'wall_clock = "soon"', f'`budget.wall_clock = "soon"`: {DURATION}'),
    ('wall_clock = "75s"', "wall_clock = 0", "`budget.wall_clock = 0`: must be greater than 0"),
    # choices
    ('kind = "piecewise"', 'kind = "cosine"',
     '`search.schedule.kind = "cosine"`: must be "constant", "piecewise" or "linear"'),
    ('minimize = "seconds"', 'minimize = "time"',
     '`objective.minimize = "time"`: must be "seconds", "steps", "examples" or "metric"'),
    # missing
    ("learning_rate = 0.01", "", "`baseline.learning_rate` is missing"),
    ('max_examples = "30 epochs"', "", "`trial.max_examples` is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "says"), MISTAKES)
def test_a_mistake_names_key_value_and_rule(edit: Edit, old: str, new: str, says: str) -> None:
    assert mistakes(edit(old, new)) == [says]


@pytest.mark.parametrize("section", ["workload", "objective", "trial"])
def test_a_missing_section(edit: Edit, section: str) -> None:
    assert f"`{section}` is missing" in mistakes(edit(f"[{section}]\n", "[other]\n"))


def test_all_mistakes_are_listed_at_once(edit: Edit) -> None:
    text = edit("seed = 3", "seed = -1", "wall_clock", "wall_clok", "low = 8", "low = 0", "momentum = 0.8", "")
    assert mistakes(text) == [
        "`search.global_batch_size.low = 0`: must be greater than or equal to 1",
        "unknown key `budget.wall_clok`: did you mean `wall_clock`?",
        "`run.seed = -1`: must be greater than or equal to 0",
    ]


def test_an_empty_file_lists_all_that_is_missing() -> None:
    assert mistakes("") == [f"`{s}` is missing" for s in ("workload", "objective", "search", "trial")]


def test_not_toml_says_where() -> None:
    [mistake] = mistakes("[workload\n")
    assert mistake.startswith("not valid TOML: ")
    assert "line 1" in mistake


def test_a_file_is_named_after_itself_unless_it_says_otherwise(tmp_path: Path, edit: Edit) -> None:
    path = tmp_path / "my_study.toml"
    path.write_text(edit(), encoding="utf-8")
    assert load_definition(path).name == "quick"
    path.write_text(edit('name = "quick"', ""), encoding="utf-8")
    assert load_definition(path).name == "my_study"


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path, edit: Edit) -> None:
    path = tmp_path / "my_study.toml"
    path.write_text(edit("seed = 3", "seed = -1"), encoding="utf-8")
    with pytest.raises(DefinitionError) as caught:
        load_definition(path)
    assert str(caught.value) == f"{path}: `run.seed = -1`: must be greater than or equal to 0"


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"gone\.toml: cannot be read: No such file or directory"):
        load_definition(tmp_path / "gone.toml")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="cannot be read: Is a directory"):
        load_definition(tmp_path)


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes('name = "größe"'.encode("latin-1"))
    with pytest.raises(DefinitionError, match=r"latin\.toml: not UTF-8, as TOML must be: .* at byte 10"):
        load_definition(path)


def test_every_study_of_the_repository_is_valid() -> None:
    studies = sorted(Path(__file__).parents[2].glob("studies/*.toml"))
    assert studies
    for path in studies:
        assert load_definition(path).name == path.stem
