from __future__ import annotations

import inspect

from scalesearch import errors


def test_every_error_is_a_scalesearch_error_and_in_the_tree_of_the_docstring() -> None:
    classes = {name: c for name, c in vars(errors).items() if inspect.isclass(c) and c.__module__ == errors.__name__}
    assert classes
    tree = errors.__doc__ or ""
    for name, error in classes.items():
        assert issubclass(error, errors.ScalesearchError)
        assert name in tree
        assert error.__doc__
