"""What a site allows: `local/fedspan.toml` in its kit, written by `fedspan site init` and owned by the site.

A run that asks for less protection than it demands is refused before a row is read.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from string import hexdigits
from typing import Any

from fedspan._files import require_private
from fedspan._foreign import parse_toml
from fedspan.algorithms.agree_columns import AgreeOnColumns, Columns, feature_names
from fedspan.algorithms.gcca.network_files import locate_network
from fedspan.algorithms.matching.match_digests import MatchDigests
from fedspan.algorithms.registry import ALGORITHMS, MATCHINGS, OPENINGS
from fedspan.data.cells.dialect import KEYS_OF_DIALECT, add_reading, read_dialect
from fedspan.data.database import has_password
from fedspan.data.ids_and_labels import to_class
from fedspan.data.preparation import Preparation
from fedspan.data.remote_tables import Label
from fedspan.deployment.approval.approval_rules import ApprovalRules, parse_approval
from fedspan.deployment.site_rules.verified_rules import check_verified
from fedspan.engines.handshake import COLUMN_KINDS, Description
from fedspan.engines.start import StartMessage, TableRequest, preparation_from
from fedspan.errors import InputError, PolicyRefusal, PrivacyError, suggest
from fedspan.privacy.budget import Budget

FILE = "fedspan.toml"
LARGEST = 1e100  # a larger number counts as missing: its square could not be added up
_SECRET_DIGITS = 32  # of 4 bits
ALGORITHM_NAMES = tuple(name.lower() for name in ALGORITHMS)


@dataclass(frozen=True)
class SiteTable:
    """One table of the site: where it is, and every word that a job may use of it.

    Jobs know its name, never its address. What may be said of it to others is here, and nothing is looked up in the
    rows: columns, classes, categories and units are those that the site's owner wrote down.
    """

    path: str
    columns: tuple[str, ...] | None = None  # the only ones that a job may use, in this order
    features: int | None = None  # in place of `columns`, for tables whose columns have no names
    id: str | None = None
    label: str | None = None
    classes: tuple[Label, ...] = ()  # the values that the label may have
    target: str | None = None  # a column of numbers that regressions may learn to predict, and nobody else gets
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the words that a column may have
    units: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)  # what a column holds, compared with the other sites
    rows: int = 0  # what others are told, if anything: a public figure, which nobody compares with the data
    min_rows: int = 1  # a job over fewer rows is refused
    min_rows_per_class: int = 1
    complete_rows: bool = False  # only rows without a gap in any open column are used, whichever columns a job names
    min_common: int = 10  # rows are matched by their ids only if at least so many entities are common
    max_ids: int = 1_000_000  # and only in sets of at most this size
    pad_ids: int = 0  # of so many ids others are to see at least, whatever the table has
    secret_file: str | None = None  # keys the digests of ids; the sites share its contents, the server never sees them
    held_out: str | None = None  # further rows of the same columns
    network: str | None = None  # for deep GCCA: file.py:function of the site's own, which makes its network
    reading: Mapping[str, object] = field(default_factory=dict)  # how its file is written; no job can change it

    @property
    def source(self) -> object:
        """What opens the table."""
        return add_reading(self.path, self.reading)

    @property
    def held_out_source(self) -> object:
        """What opens the further rows, if there are some."""
        return None if self.held_out is None else add_reading(self.held_out, self.reading)

    def choose(self, asked: TableRequest) -> Preparation:
        """How columns are made for a job: it chooses among the words of this file, and can add none."""
        wanted = preparation_from(asked.get("preparation"))
        alone = bool(asked.get("alone"))
        if wanted.weight is not None:
            raise PolicyRefusal("A site does not weigh its rows for a job. Leave data.weight out.")
        self._check_role("id", wanted.id, self.id, optional=alone)
        if wanted.label is None or wanted.label != self.target:
            self._check_role("label", wanted.label, self.label, optional=alone and not wanted.label_everywhere)
        if self.columns is None:
            return self._choose_all(wanted)
        features = self.find_features()
        chosen = features if wanted.columns is None or alone else list(wanted.columns)
        chosen = [name for name in chosen if name not in (self.id, self.label, self.target)]
        for name in chosen:
            if name not in features:
                raise PolicyRefusal(f"Column {name!r} is not open to jobs at this site.")
        if not chosen or len(set(chosen)) < len(chosen):
            raise PolicyRefusal("A job must name at least one column of this site's table, and each column once.")
        self._check_categories(wanted, chosen, alone=alone)
        _check_fill(wanted.fill)
        return Preparation(
            columns=tuple(chosen),
            categories={name: words for name, words in self.categories.items() if name in chosen},
            missing=wanted.missing,
            fill=wanted.fill,
        )

    def find_features(self) -> list[str]:
        """The open columns that are features."""
        return [name for name in self.columns or () if name not in (self.id, self.label, self.target)]

    def _choose_all(self, wanted: Preparation) -> Preparation:
        """All columns, because they have no names by which some could be chosen."""
        if wanted.columns is not None or wanted.categories:
            raise PolicyRefusal("The columns of this site's table have no names, so none can be chosen by name.")
        if wanted.n_features not in (None, self.features):
            raise PolicyRefusal(f"This site's table has {self.features} features, not {wanted.n_features}.")
        _check_fill(wanted.fill)
        return Preparation(missing=wanted.missing, fill=wanted.fill, n_features=self.features)

    def _check_role(self, role: str, wanted: str | None, own: str | None, *, optional: bool) -> None:
        if wanted in (None, own) or (own is None and optional):
            return
        raise PolicyRefusal(
            f"This site's own file says which column is the {role}, and it is not {wanted!r}. Leave data.{role} out."
        )

    def _check_categories(self, wanted: Preparation, chosen: Sequence[str], *, alone: bool) -> None:
        for name, words in wanted.categories.items():
            if alone and name not in chosen:
                continue  # a column of another view
            own = self.categories.get(name) if name in chosen else None
            if own is None or words not in ((), own):
                raise PolicyRefusal(
                    f"This site's own file says which columns hold categories and which words they have, and the job "
                    f"says something else of {name!r}. Leave it out of data.categories."
                )

    def names_of(self, choice: Preparation) -> list[str] | None:
        """The features that a job gets, `sex=f` for a category; None if they have no names."""
        if choice.columns is None:
            return None
        return feature_names(Columns(len(choice.columns), choice.columns), choice.categories)

    def choose_classes(self, told: Mapping[str, object]) -> dict[str, int]:
        """The number that each class of this table has in the job, by its word; a job may leave classes out."""
        classes, weights = told.get("labels"), told.get("weights")
        if self.label is None:
            raise PolicyRefusal("This site's table has no column of labels. Its owner must name it: label = …")
        if not isinstance(classes, list | tuple) or not classes or not all(isinstance(c, Label) for c in classes):
            raise PolicyRefusal("The server must name the classes to learn, but named none.")
        if weights is not None and not _are_weights(weights, len(classes)):
            raise PolicyRefusal("The weights of the classes must be one number from 0 to 1e100 for each class.")
        numbers = {to_class(word): number for number, word in enumerate(classes)}
        own = {to_class(word) for word in self.classes}
        return {word: number for word, number in numbers.items() if word in own}

    def read_secret(self) -> str:
        """The secret under which ids are digested; refused if it could be guessed, or read by others."""
        if self.secret_file is None:
            raise PolicyRefusal(
                "This site's table has ids, but no secret to digest them with, so they are not compared. Its owner "
                "must write secret_file = … (made by fedspan federation secret), or leave id out: then rows are "
                "matched by their order only."
            )
        try:
            return read_secret_file(Path(self.secret_file))
        except InputError as error:
            raise PolicyRefusal("This site's secret for ids cannot be used; its log says why.") from error


def write_secret(path: Path) -> None:
    """Write a random secret of 256 bits to a new file that only its owner can read."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InputError(f"{path} already exists; choose another path.") from None
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}.") from None
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32) + "\n")


def read_secret_file(path: Path) -> str:
    """The secret in a file: at least 128 bits in hexadecimal digits, readable by its owner only."""
    make = "Make one with: fedspan federation secret PATH"
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"Cannot read the secret in {path} ({type(error).__name__}). {make}") from None
    require_private(path)
    if len(text) < _SECRET_DIGITS or not set(text.lower()) <= set(hexdigits):
        raise InputError(f"The secret in {path} must have at least {_SECRET_DIGITS} hexadecimal digits. {make}")
    return text.lower()


def _check_fill(fill: Mapping[str, float]) -> None:
    """Refuse numbers so large that a sum overflows where they are used: it would show whether they are."""
    for name, value in fill.items():
        if not abs(value) <= LARGEST:
            raise PolicyRefusal(f"data.fill must be finite and at most {LARGEST:g}, but that of {name!r} is {value!r}.")


def _are_weights(weights: object, count: int) -> bool:
    if not isinstance(weights, list | tuple) or len(weights) != count:
        return False
    return all(isinstance(w, int | float) and not isinstance(w, bool) and 0 <= w <= LARGEST for w in weights)


@dataclass(frozen=True)
class Policy:
    """The site's file, checked."""

    tables: Mapping[str, SiteTable]
    algorithms: tuple[str, ...] = ALGORITHM_NAMES
    rows: bool = True  # whether the site tells the figure that its file gives for its rows, and digests of its ids
    names: bool = True  # whether it says what its columns are called
    partial_sums: bool = False  # whether secure sums without noise may be over some of a run's sites
    secure: bool = True  # secure sums only
    others: int = 2  # at least this many other sites in a secure sum
    verified: bool = False  # verified runs only
    sites: tuple[str, ...] | None = None  # the sites of verified runs, all of them
    row_norm: float | None = None
    epsilon: float | None = None  # over all runs, with `delta`; None: runs without noise are accepted
    delta: float | None = None
    budget: Path = field(default=Path("budget.json"))
    approvals: ApprovalRules = field(default_factory=ApprovalRules)  # whose jobs run, and which of them wait
    transcript: int = 0  # bytes of messages that are kept of each run, for audits; 0: none

    @classmethod
    def read(cls, kit: Path) -> Policy:
        """The policy of a site, from its kit."""
        path = kit / "local" / FILE
        try:
            tree = parse_toml(path.read_text(encoding="utf-8"))
        except OSError:
            raise InputError(
                f"There is no {path}. Write it with: fedspan site init {kit} --data FILE --columns a,b,c"
            ) from None
        except ValueError as error:
            raise InputError(f"{path} is not valid TOML: {error}") from None
        policy = cls.parse(tree, kit, path)
        if any(has_password(table.path) for table in policy.tables.values()):
            require_private(path)
        return policy

    @classmethod
    def parse(cls, tree: Mapping[str, Any], kit: Path, path: Path) -> Policy:
        """The policy that a document describes; what is unknown is refused: it may have been meant to protect."""
        known = {"tables", "allow", "require", "algorithms", "keep"}
        for name in tree:
            if name not in known:
                raise InputError(f"[{name}] in {path} is not a known section. {suggest(name, known)}")
        listed = tree.get("tables", {})
        if not isinstance(listed, dict):
            raise InputError(f"[tables] of {path} must be a section with tables in it, but is {listed!r}.")
        tables = {name: _read_table(path, name, given, kit) for name, given in listed.items()}
        if not tables:
            raise InputError(f"{path} names no table of data. Write [tables.default] with path = …")
        given = tree.get("allow", {})
        if not isinstance(given, dict):
            raise InputError(f"[allow] of {path} must be a section with keys, but is {given!r}.")
        who = {key: given[key] for key in ("approval", "researchers") if key in given}
        approvals = parse_approval(path, who, tree.get("algorithms", {}), ALGORITHM_NAMES)
        kept = _check_keys(path, "keep", tree.get("keep", {}), {"transcript_mb": int})
        what = {key: value for key, value in given.items() if key not in who}
        allow = _check_keys(
            path, "allow", what, {"algorithms": list, "rows": bool, "names": bool, "partial_sums": bool}
        )
        kinds = {"secure": bool, "others": int, "row_norm": float, "epsilon": float, "delta": float, "budget": str}
        kinds |= {"verified": bool, "sites": list}
        require = _check_keys(path, "require", tree.get("require", {}), kinds)
        if "algorithms" in allow:
            allow["algorithms"] = tuple(str(name).lower() for name in allow["algorithms"])
            odd = [name for name in allow["algorithms"] if name not in ALGORITHM_NAMES]
            if odd:
                hint = suggest(odd[0], ALGORITHM_NAMES)
                raise InputError(f"{odd[0]!r} in [allow] of {path} is not an algorithm of fedspan. {hint}")
        if "sites" in require:
            require["sites"] = tuple(map(str, require["sites"]))
        if require.get("verified") and not require.get("sites"):
            raise InputError(
                f"verified = true in [require] of {path} needs the names of all sites, or a server could invent some: "
                'sites = ["…", "…", "…"].'
            )
        for key in ("row_norm", "epsilon", "delta"):
            if key in require and not 0 < require[key] < math.inf:
                raise InputError(f"{key} in [require] of {path} must be above 0 and finite, but is {require[key]!r}.")
        if ("epsilon" in require) != ("delta" in require):
            raise InputError(f"[require] of {path} must have both epsilon and delta, or neither.")
        if "row_norm" in require and "epsilon" not in require:
            raise InputError(
                f"row_norm in [require] of {path} needs epsilon and delta: without a budget, a job could ask for next "
                "to no noise."
            )
        if require.get("others", 1) < 1:
            raise InputError(f"others in [require] of {path} must be at least 1, but is {require['others']}.")
        budget = kit / require.pop("budget", kit / "fedspan" / "budget.json")
        most = int(kept.get("transcript_mb", 0))
        if most < 0:
            raise InputError(f"transcript_mb in [keep] of {path} must be at least 0, but is {most}.")
        return cls(tables, **allow, **require, budget=budget, approvals=approvals, transcript=most * 10**6)

    @property
    def noise_key(self) -> Path:
        """The key of this site's noise, if it has no budget to keep one with."""
        return self.budget.with_name("noise.key")

    def find_table(self, asked: TableRequest) -> SiteTable:
        """The table that a job may name; never a path."""
        name = asked.get("name") or "default"
        if name not in self.tables:
            raise PolicyRefusal(f"This site has no table {name!r}. A job may name one of: {', '.join(self.tables)}.")
        return self.tables[name]

    def describe(self, asked: TableRequest, *, labels: bool, versions: dict[str, str]) -> Description:
        """What others are told of a table, from this file alone: it is the same whatever is in the rows."""
        table = self.find_table(asked)
        choice = table.choose(asked)
        names = table.names_of(choice)
        n_features = table.features if names is None else len(names)
        units = {column: unit for column, unit in table.units.items() if column in (choice.columns or ())}
        kinds = {column: kind for column, kind in table.kinds.items() if column in (choice.columns or ())}
        description: Description = {
            "versions": versions,
            "secure": self.secure,
            "others": self.others,
            "n_features": int(n_features or 0),
            "digest": digest_schema(names, int(n_features or 0), units),
            "columns": list(choice.columns) if self.names and choice.columns is not None else None,
            "categories": {name: list(words) for name, words in choice.categories.items()} if self.names else {},
            "units": units if self.names else {},
            "kinds": kinds if self.names else {},
            "names": names if self.names else None,
            "rows": table.rows if self.rows else 0,
            "ids": table.id is not None,
            "keyed": table.id is not None and table.secret_file is not None,
        }
        if labels:
            if table.label is None:
                raise PolicyRefusal("This site's table has no column of labels. Its owner must name it: label = …")
            description["labels"] = list(table.classes)
        return description

    def check(self, start: StartMessage, name: str) -> Budget | None:
        """The budget to charge, if the run is protected as this site demands; else a refusal with its reason."""
        algorithm, t = type(start.algorithm).__name__.lower(), start.threshold
        opening = start.privacy is not None and type(start.algorithm) in OPENINGS
        if algorithm not in self.algorithms and not opening:
            raise PolicyRefusal(
                f"The algorithm {algorithm!r} is not allowed at this site. Allowed are: {', '.join(self.algorithms)}."
            )
        self._check_table(start)
        if name not in start.clients:
            raise PolicyRefusal("This site is not among the clients of the run.")
        if t is not None and not 2 <= t <= len(start.clients):
            raise PolicyRefusal(f"The threshold must be from 2 to the {len(start.clients)} sites, but is {t}.")
        check_verified(start, self.verified, self.sites)
        secure = self.secure and type(start.algorithm) not in MATCHINGS  # tags of ids cannot be added up
        if secure and t is None:
            raise PolicyRefusal(
                "This site accepts secure sums only. Write [secure] enabled = true in the job, with an algorithm that "
                "asks for sums."
            )
        if secure and t is not None and t < self.others + 1:
            raise PolicyRefusal(
                f"This site needs at least {self.others} other sites in every sum, but the run would go on with "
                f"{t - 1}. Write [secure] threshold = {self.others + 1} or more in the job."
            )
        if secure and start.privacy is None and not self.partial_sums and t is not None and not start.verified:
            _check_whole_sums(t, len(start.clients))
        try:
            return self._check_noise(start)
        except PrivacyError as error:
            raise PolicyRefusal(str(error)) from None

    def _check_table(self, start: StartMessage) -> None:
        """Refuse a run that needs something else of the table than the site's file says."""
        table, algorithm, needs = self.find_table(start.table), start.algorithm, start.algorithm.client.needs
        choice = table.choose(start.table)
        if isinstance(algorithm, AgreeOnColumns):
            if algorithm.columns is None and choice.columns is not None:
                raise PolicyRefusal(
                    "Means fill gaps by the names of columns, and this site does not tell them. Its owner can write "
                    "names = true in [allow] of its file, or the job can give data.fill."
                )
            own = (len(choice.columns or ()) or table.features, choice.columns, tuple(choice.categories.items()))
            if (algorithm.features, algorithm.columns, algorithm.vocabulary) != own:
                raise PolicyRefusal("The job fills gaps in other columns or categories than this site's file has.")
        elif choice.missing == "mean" and not start.table.get("alone"):
            names = table.names_of(choice) or [str(j) for j in range(table.features or 0)]
            without = [name for name in names if name not in choice.fill]
            if without:
                which = f" for {without[0]!r}" if self.names else ""
                raise PolicyRefusal(f"data.fill must have a value for every feature, but one is missing{which}.")
        if needs == "labelled":
            read_limited_classes(start.told.get("limited"), table.choose_classes(start.told))
        if start.privacy is None and 0 < algorithm.batch_rows() < table.min_rows:
            raise PolicyRefusal(
                f"The job sums over batches of {algorithm.batch_rows()} rows, but sums at this site are over at least "
                f"{table.min_rows} (min_rows in its file). Give batch_size = {table.min_rows} or more, or 0 for all."
            )
        if needs == "target" and table.target is None:
            raise PolicyRefusal("This site's table has no column of targets. Its owner must name it: target = …")
        if needs == "ids":
            _check_may_match(table, start)
        elif needs in ("entities", "network") and table.id is not None and "matched" not in start.told:
            table.read_secret()
        if needs == "network" and table.network is None:
            raise PolicyRefusal(
                'Deep GCCA needs a network. The site\'s owner must write network = "file.py:function" in its file.'
            )

    def forbids(self, task: str) -> str | None:
        """Why a task is not answered here whatever the algorithm; None if it may be."""
        if task in ("identify_rows", "digest_rows") and not (self.rows and self.names):
            return "This site does not give digests of single ids (rows and names in [allow] of its file)."
        return None

    def _check_noise(self, start: StartMessage) -> Budget | None:
        dp = start.privacy
        if dp is None:
            if self.epsilon is not None or self.row_norm is not None:
                raise PrivacyError("This site does not accept runs without noise. Write a [privacy] table in the job.")
            return None
        if dp.simulate or start.algorithm.simulates():
            raise PrivacyError("The server could remove simulated noise again. Leave privacy.simulate out of the job.")
        least = self.find_table(start.table).min_rows
        if dp.delta * least >= 1:
            raise PrivacyError(
                f"delta must be below 1 / number of rows, but is {dp.delta!r}, and this site expects {least} rows or "
                "more of a job."
            )
        plan = start.plan  # this site's own: nothing of it comes from the server
        if plan is None or plan.row_norm != dp.row_norm:
            raise PrivacyError("The privacy plan of this run cannot be made at this site.")
        if plan.spread > 1 and not start.verified:
            raise PrivacyError(
                "Sites share the noise of a sum only in verified runs: a server that invented the others would be left "
                "with this site's small part of it. Write [secure] verified = true in the job."
            )
        if self.row_norm is not None and not plan.row_norm <= self.row_norm:
            raise PrivacyError(
                f"The row norm must be at most {self.row_norm!r} at this site, but is {plan.row_norm!r} in the job."
            )
        if self.epsilon is None or self.delta is None:
            return None
        try:
            budget = Budget(self.budget)
        except PrivacyError as error:  # its words are for this site's administrator
            raise PolicyRefusal(
                "This site's privacy budget cannot be used; its log says why. What its administrator can do: fedspan "
                "site budget KIT"
            ) from error
        if budget.allowance != (self.epsilon, self.delta):
            raise PrivacyError(
                "This site's file and its budget differ in epsilon or delta. Its administrator must grant the budget "
                "again, with: fedspan site budget KIT --grant"
            )
        return budget


def _check_whole_sums(threshold: int, sites: int) -> None:
    """Refuse sums over some of a run's sites: the same sum with and without a site shows that site."""
    if threshold < sites:
        raise PolicyRefusal(
            f"The run would go on with sums over {threshold} of its {sites} sites, and the difference of two such sums "
            "may be a single site. Leave min_clients, participation and [secure] threshold out; or write [secure] "
            "verified = true and groups = …: then a missing site leaves its group out. A site's administrator can "
            "allow such sums with partial_sums = true in [allow] of its file."
        )


def _check_may_match(table: SiteTable, start: StartMessage) -> None:
    """Refuse to match rows that have no ids, or to digest them without a secret."""
    if table.id is None:
        raise PolicyRefusal("This site's table has no column of ids. Its owner must name it: id = …")
    if isinstance(start.algorithm, MatchDigests) or table.secret_file is not None:
        table.read_secret()


def read_limited_classes(told: object, numbers: Mapping[str, int]) -> tuple[int, ...]:
    """The classes whose losses are asked for by themselves: numbers of classes of the job, each once."""
    if told is None:
        return ()
    most = max(numbers.values(), default=-1)
    fine = isinstance(told, list | tuple) and all(type(each) is int and each >= 0 for each in told)
    if not isinstance(told, list | tuple) or not fine or len(set(told)) < len(told) or len(told) > max(most + 1, 64):
        raise PolicyRefusal("The classes that limits are on must be numbers of classes, each once.")
    return tuple(told)


def digest_schema(names: list[str] | None, n_features: int, units: Mapping[str, str]) -> str:
    """One digest of the columns' names, their order and their units."""
    return blake2b(json.dumps([names, n_features, sorted(units.items())]).encode(), digest_size=16).hexdigest()


_KINDS: dict[str, type | tuple[type, ...]] = {
    **{f.name: str for f in fields(SiteTable) if f.name != "reading"},
    **KEYS_OF_DIALECT,
    **dict.fromkeys(("columns", "classes"), list),
    **dict.fromkeys(("categories", "units", "kinds"), dict),
    **dict.fromkeys(("features", "rows", "min_rows", "min_rows_per_class"), int),
    **dict.fromkeys(("min_common", "max_ids", "pad_ids"), int),
    "complete_rows": bool,
}


def _read_table(path: Path, name: str, given: Any, kit: Path) -> SiteTable:
    """One table of the file, if it says all that must be said."""
    where = f"[tables.{name}] of {path}"
    if isinstance(given, dict) and "secret" in given:
        raise InputError(
            f"secret in {where} is no longer read, because a word that people agree on can be guessed. Make a random "
            "one with `fedspan federation secret PATH`, hand it to all sites, and write secret_file = PATH."
        )
    keys = _check_keys(path, f"tables.{name}", given, _KINDS)
    if "path" not in keys:
        raise InputError(f"{where} must have a path: a file, or the address of a database.")
    if ("columns" in keys) == ("features" in keys):
        raise InputError(
            f'{where} must say which columns are open to jobs: columns = ["…", "…"], or features = NUMBER if the '
            "columns have no names (.npy, .npz, LIBSVM). To have all of them listed: fedspan site init KIT --data FILE "
            "--all-columns --replace"
        )
    reading = {key: keys.pop(key) for key in KEYS_OF_DIALECT if key in keys}
    read_dialect(reading, where)
    keys["reading"] = reading
    for key in ("path", "held_out", "secret_file"):
        if key in keys and "://" not in keys[key]:
            keys[key] = str((kit / keys[key]).absolute())
    if "network" in keys:
        try:
            keys["network"] = locate_network(keys["network"], kit.absolute())
        except InputError as error:
            raise InputError(f"network in {where}: {error}") from None
    for key in ("features", "min_rows", "min_rows_per_class", "min_common", "max_ids"):
        if keys.get(key, 1) < 1:
            raise InputError(f"{key} in {where} must be at least 1, but is {keys[key]}.")
    for key in ("rows", "pad_ids"):
        if keys.get(key, 0) < 0:
            raise InputError(f"{key} in {where} must be at least 0, but is {keys[key]}.")
    for column, kind in keys.get("kinds", {}).items():
        if kind not in COLUMN_KINDS:
            raise InputError(f"kinds.{column} in {where} must be one of {', '.join(COLUMN_KINDS)}, but is {kind!r}.")
    keys["units"] = {str(column): str(unit) for column, unit in keys.get("units", {}).items()}
    return _check_words(where, keys)


def _check_words(where: str, keys: dict[str, Any]) -> SiteTable:
    """The table, if its columns, classes and categories are lists of different words that fit together."""
    lists: dict[str, object] = {key: keys[key] for key in ("columns", "classes") if key in keys}
    lists |= {f"categories.{column}": words for column, words in keys.get("categories", {}).items()}
    for key, words in lists.items():
        kinds = str if key != "classes" else Label
        if not isinstance(words, list) or not all(isinstance(w, kinds) and not isinstance(w, bool) for w in words):
            raise InputError(f"{key} in {where} must be a list of words, but is {words!r}.")
        found = {to_class(word) if key == "classes" else word.strip() for word in words}
        if not words or "" in found or len(found) < len(words):
            raise InputError(f"{key} in {where} must have at least one word, and each word once.")
    classes = keys.get("classes", [])
    if len({isinstance(word, str) for word in classes}) > 1:
        raise InputError(f"classes in {where} must be all words or all numbers.")
    if ("label" in keys) != bool(classes):
        raise InputError(
            f'{where} must have both label and classes, or neither: label = "outcome", classes = ["ill", "well"].'
        )
    if "target" in keys and ("columns" not in keys or keys["target"] in (keys.get("id"), keys.get("label"))):
        raise InputError(f"target in {where} must be a column of its own in a table whose columns have names.")
    for column in keys.get("categories", {}):
        if column not in keys.get("columns", []):
            raise InputError(f"{column!r} in categories of {where} is not one of its columns.")
    for key in ("columns", "classes"):
        if key in keys:
            keys[key] = tuple(keys[key])
    keys["categories"] = {name: tuple(map(str.strip, words)) for name, words in keys.get("categories", {}).items()}
    return SiteTable(**keys)


def _check_keys(path: Path, where: str, given: Any, kinds: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise InputError(f"[{where}] of {path} must be a section with keys, but is {given!r}.")
    for key, value in given.items():
        if key not in kinds:
            raise InputError(f"{key!r} in [{where}] of {path} is not a known key. {suggest(key, kinds)}")
        wanted = kinds[key]
        allowed = wanted if isinstance(wanted, tuple) else (wanted,)
        kind = (*allowed, int) if float in allowed else allowed
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in allowed):
            names = " or ".join(one.__name__ for one in allowed)
            raise InputError(f"{where}.{key} of {path} must be of type {names}, but is {value!r}.")
    return dict(given)
