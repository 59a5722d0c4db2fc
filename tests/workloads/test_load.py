from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from scalesearch.errors import DataError, WorkloadError
from scalesearch.workloads import Workload, load_workload

OWN = """
from scalesearch.errors import DataError
from scalesearch.workloads import Workload

def workload(*, width=3, name="own/model"):
    nothing = lambda *arguments: None
    return Workload(name=f"{name}/{width}", load_data=nothing, build_model=nothing, loss=nothing, metrics={},
                    prepare=nothing)

def any_options(**options):
    return workload(name=",".join(options))

def width_and_any(width=3, **options):
    return workload(width=width, **options)

def needs(width):
    return workload(width=width)

def breaks():
    raise RuntimeError("no such folder")

def lacks_data():
    raise DataError("file x is missing")

def returns_nothing():
    pass

finished = workload()
number = 3
"""


@pytest.fixture(scope="module", autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("own")
    (folder / "own_workload.py").write_text(OWN)
    (folder / "own_raising.py").write_text("1 / 0\n")
    (folder / "own_importing.py").write_text("import not_installed_anywhere\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


def refusal(name: str, options: Mapping[str, object] | None = None) -> str:
    with pytest.raises(WorkloadError) as caught:
        load_workload(name, options or {})
    return str(caught.value)


def test_unknown_built_in_names_the_nearest_and_lists_all() -> None:
    message = refusal("fashion_mnist/mpl")
    assert "(did you mean 'fashion_mnist/mlp'?)" in message
    assert "digits/mlp" in message
    assert "package.module:name" in message


def test_unknown_option_names_the_nearest() -> None:
    message = refusal("digits/mlp", {"hiden_units": 3})
    assert "no option 'hiden_units' (did you mean 'hidden_units'?)" in message
    assert "hidden_layers" in message


@pytest.mark.parametrize("value", ["128", 128.0, True, None])
def test_option_of_the_wrong_type(value: object) -> None:
    message = refusal("digits/mlp", {"hidden_units": value})
    assert f"`hidden_units` must be of type int, but got {value!r}" in message


@pytest.mark.parametrize("options", [{"hidden_units": 0}, {"hidden_layers": -1}])
def test_option_out_of_range(options: Mapping[str, object]) -> None:
    ((option, value),) = options.items()
    message = refusal("digits/mlp", options)
    assert f"`{option} >= " in message
    assert f"but got {value}" in message


def test_own_workload_by_factory_with_options() -> None:
    assert load_workload("own_workload:workload", {"width": 5}).name == "own/model/5"
    assert load_workload("own_workload:any_options", {"a": 1, "b": 2}).name == "a,b/3"
    assert load_workload("own_workload:width_and_any", {"width": 5, "name": "x"}).name == "x/5"


def test_own_factory_without_options() -> None:
    assert "no option 'width'. It has no options" in refusal("own_workload:returns_nothing", {"width": 5})


def test_own_finished_workload() -> None:
    assert isinstance(load_workload("own_workload:finished"), Workload)
    assert "takes no options, but got width" in refusal("own_workload:finished", {"width": 5})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nowhere:workload", "no module 'nowhere'"),
        ("nowhere:workload", "python -m scalesearch"),
        ("os.nowhere:workload", "no module 'os.nowhere'"),
        (
            "own_importing:workload",
            "'own_importing' imports 'not_installed_anywhere', which is not installed",
        ),
        ("own_raising:workload", "importing 'own_raising' failed with ZeroDivisionError: division by zero"),
        ("own_workload:workloads", "no 'workloads' (did you mean 'workload'?)"),
        ("own_workload:workloads", "finished"),
        ("own_workload:number", "is an object of type int"),
        ("own_workload:returns_nothing", "returned an object of type NoneType"),
        ("own_workload:breaks", "failed with RuntimeError: no such folder"),
        ("builtins:dict", "failed with ValueError"),
        ("own_workload:needs", "needs a value for the option width"),
        ("own_workload:", "is named `package.module:name`"),
        (":workload", "is named `package.module:name`"),
        (".relative:workload", "is named `package.module:name`"),
    ],
)
def test_own_workload_that_cannot_be_loaded(name: str, expected: str) -> None:
    message = refusal(name)
    assert name in message
    assert expected in message


def test_an_error_written_for_the_user_is_passed_on() -> None:
    with pytest.raises(DataError, match="file x is missing"):
        load_workload("own_workload:lacks_data")
