"""The maker of a network that a file names: a function in a Python file of the owner's, or in a module.

Only two files can name one: a site's own `fedspan.toml`, and a job file that is run in one process, where whoever runs
it has the Python file, too. What the server of a federation sends names nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedspan.errors import InputError

if TYPE_CHECKING:
    from fedspan.algorithms.gcca.networks import Module


def locate_network(name: str, beside: Path) -> str:
    """The name with the path of its file made absolute; `module:function` stays as it is."""
    file, colon, function = name.rpartition(":")
    if not colon or not file or not function.isidentifier():
        raise InputError(
            f"A network is named by its file and the function that makes it, as in networks.py:small, not by {name!r}."
        )
    return f"{beside / file}:{function}" if file.endswith(".py") else name


def find_maker(name: str, k: int) -> Callable[[], Module]:
    """What makes the network with k outputs; its file is read when it is first called.

    The function takes nothing, or one argument: the number of outputs.
    """

    def make() -> Module:
        file, _, function = name.rpartition(":")
        found: Any = vars(_load(file)).get(function)
        if not callable(found):
            raise InputError(
                f"{file} has no function {function!r} that makes a network. Write it, or name another one."
            )
        network: Module = found(k) if _takes_an_argument(found) else found()
        return network

    return make


def _load(file: str) -> ModuleType:
    if not file.endswith(".py"):
        try:
            return import_module(file)
        except ImportError as error:
            raise InputError(f"The module {file!r}, which should make a network, cannot be imported: {error}") from None
    if not Path(file).is_file():
        raise InputError(f"There is no file {file}, which should make a network. Write it, or name another one.")
    spec = spec_from_file_location(f"fedspan_network_{blake2b(file.encode(), digest_size=8).hexdigest()}", file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is no Python file.")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _takes_an_argument(function: Callable[..., object]) -> bool:
    """Whether it must be given something: a parameter without a default."""
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        one.kind in positional and one.default is Parameter.empty for one in signature(function).parameters.values()
    )
