"""`fedspan new`: a job file to start from, with every key that the task knows and what it means.

The keys of [job], their defaults and what they mean come from the table of the estimator's parameters.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from fedspan.errors import InputError, suggest
from fedspan.estimators.field.prepare_genotypes import GenotypeOptions
from fedspan.estimators.parameters import Parameter
from fedspan.jobs._toml import to_toml
from fedspan.jobs.field.genotype_keys import (
    DATA_KINDS,
    GENOTYPE_KEYS,
    SAYS_OF_GENOTYPES,
    TASKS_OF_GENOTYPES,
    describe_files,
)
from fedspan.jobs.model import rows_of
from fedspan.jobs.schema import BESIDE
from fedspan.jobs.tasks import TASKS, estimator

_ABOUT = {
    "pca": "principal components of all clients' rows together",
    "svd": "leading right singular vectors of all clients' rows together (nothing is centered)",
    "gcca": "what views of the same entities, one at each client, have in common",
    "deep-gcca": "what a network for each view, trained at its client, finds that the views have in common",
    "personalized": "principal components for every client, drawn towards what all clients share",
    "classifier": "a classifier of rows that are spread over clients",
    "vertical-classifier": "a classifier of rows whose features are spread over clients",
    "regressor": "a linear regression of rows that are spread over clients",
    "vertical-regressor": "a linear regression of rows whose features are spread over clients",
    "vertical-pca": "principal components of one table whose columns are spread over clients",
    "vertical-svd": "singular vectors of one table whose columns are spread over clients (nothing is centered)",
}
_SET_BY_GENOTYPES = ("center", "scale")  # parameters that the preparation of genotypes decides
_FILES = '.csv, .parquet, .feather, .npy, .npz or .svm, beside this file; or a table: { north = "a.csv" }'
_QUERY = '# Of a database: { clinic = { url = "postgresql://user@host/db", query = "SELECT …" } }, or table = "…"'
_PREPARED = (
    '# categories = ["sex"]  # columns of words, as features of 0 and 1; the clients agree on the words',
    '# missing = "refuse"  # gaps: or "mean" (over all clients){drop}',
)
_ANSWERS = {
    "min_clients": "# min_clients = 2  # go on if at least this many answer; default: all must",
    "retries": "# retries = 3  # how often a client that did not answer is asked again",
}
_PROTECTION = {
    "privacy": """
# [privacy]  # differential privacy of single rows; default: none
# epsilon = 1.0
# delta = 1e-6
# row_norm = 1.0  # {what} are shortened to this""",
    "secure": """
# [secure]  # secure aggregation: the server sees sums over the clients only; default: off
# enabled = true
# threshold = 2  # how many clients must stay for a sum to be read
# verified = true  # in place of a threshold: every client checks what the server asks and shows""",
}


def write_new(task: str, path: Path | None, kind: str = "table") -> Path:
    """Write the job file; one that is there stays as it is. `kind`: what the clients have."""
    if task not in TASKS:
        raise InputError(f"{task!r} is not a task. {suggest(task, TASKS)}")
    if kind not in DATA_KINDS:
        raise InputError(f"--kind must be {' or '.join(DATA_KINDS)}, but is {kind!r}. {suggest(kind, DATA_KINDS)}")
    if kind == "genotypes" and task not in TASKS_OF_GENOTYPES:
        raise InputError(f"--kind genotypes is for pca and svd, not for {task!r}.")
    path = path or Path(f"{task}.toml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(f"#:schema ./{BESIDE}\n" if (path.parent / BESIDE).is_file() else "")
            file.write(text_for(task, path.name, kind))
    except FileExistsError:
        raise InputError(f"{path} already exists; choose another path.") from None
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}; choose another path.") from None
    return path


def text_for(task: str, name: str, kind: str = "table") -> str:
    """The text of a new job file."""
    genotypes = kind == "genotypes"
    longer = "gradients of a row's loss that are longer" if TASKS[task].learns_label else "longer rows"
    return "\n".join(
        [
            f"# A fedspan job: {_ABOUT[task]}.",
            f"# Run it with: fedspan run {name}. Lines that begin with # show defaults and examples; take the # off.",
            "",
            "[job]",
            f"task = {to_toml(task)}",
            *(_line(row) for name, row in rows_of(task).items() if not (genotypes and name in _SET_BY_GENOTYPES)),
            "",
            "[data]",
            *(_describe_genotypes() if genotypes else _data(task)),
            *(
                _PROTECTION[table].format(what=longer)
                for table in TASKS[task].protected_by
                if not (genotypes and table == "privacy")
            ),
            "",
            "[run]",
            "# checkpoint_every = 1  # rounds",
            *(line for key, line in _ANSWERS.items() if key in inspect.signature(estimator(task).fit).parameters),
            "# transcript = true  # keep every message, for `fedspan audit`: as secret as the data; default: not kept",
            "",
        ]
    )


def _line(row: Parameter) -> str:
    """A parameter with its default, or with an example of what could be given."""
    value, says = row.default, row.says
    if value is None:
        value = row.example
        says += " Default: drawn." if row.name == "random_state" else " Default: none."
    if len(row.choices) > 2:
        says += f" One of: {' '.join(row.choices)}."
    line = f"{row.name} = {to_toml(value)}  # {says}"
    return line if row.name == "n_components" else f"# {line}"


def _describe_genotypes() -> list[str]:
    """[data] and [genotypes] for files of genotypes."""
    lines = [describe_files(), 'clients = ["a.bed", "b.pgen"]', 'kind = "genotypes"', "", "[genotypes]"]
    defaults = vars(GenotypeOptions())
    return lines + [f"# {key} = {to_toml(defaults[key])}  # {SAYS_OF_GENOTYPES[key]}" for key in GENOTYPE_KEYS]


def _data(task: str) -> list[str]:
    what = TASKS[task]
    label = f"the column (of an .npz file: the array) with {what.label_words}"
    if what.over == "views":
        files = f"# One file per client, with the same rows in the same order: {_FILES}"
        lines = [files, _QUERY, 'views = ["a.csv", "b.csv"]']
        lines.append('# id = "person"  # a column of ids that every file has: the clients\' orders are compared by it')
        lines.append(
            '# match = "psi"  # match the rows by their ids, which nobody is shown; default: only compare them'
        )
        if what.learns_label:
            label += ", in at least one of the files"
        elif task == "deep-gcca":
            lines.append('network = "networks.py:make"  # the function that makes a network; or a table view = name')
        elif task == "gcca":
            lines.append('# held_out = ["a2.csv", "b2.csv"]  # other common rows of each view, for patience')
    else:
        lines = [f"# One file per client: {_FILES}", _QUERY, 'clients = ["a.csv", "b.csv"]']
        lines.append('# columns = ["age", "pulse"]  # the features; default: all columns')
        lines.append('# id = "person"  # a column that is no feature: left out')
    drop = "" if what.over == "views" else ', or "drop" (the row)'
    if task == "gcca":
        drop = ', or entities that a view lacks: "mask" (learn from the others), or "drop"'
    lines += [line.format(drop=drop) for line in _PREPARED]
    if what.learns_label:
        return [*lines, f'label = "y"  # {label}']
    return [*lines, '# label = "y"  # a column that is no feature: left out']
