"""All clients' tables side by side: what fits together, what does not, and which keys of [data] would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from fedspan.data.cells.cell_guesses import TRUE_WORDS, quote_cell
from fedspan.data.cells.column_profile import ColumnKind, ColumnProfile, find_power
from fedspan.data.preparation import Preparation
from fedspan.jobs._toml import bare_key, to_toml
from fedspan.jobs.checking.check_result import CheckFinding, Weight
from fedspan.jobs.checking.table_profile import ReadingKeys, TableProfile

_FEW_ROWS_HERE = 10
_MOST_WORDS = 50  # of a column that is proposed as a category


@dataclass
class TableComparison:
    """Findings, and the keys that they lead to: for all clients, and for each of them."""

    tables: Mapping[str, TableProfile]
    how: Preparation
    views: bool = False  # each client has columns of its own
    private: bool = False
    secure: bool = False
    findings: list[CheckFinding] = field(default_factory=list)
    shared: dict[str, object] = field(default_factory=dict)
    own: dict[str, ReadingKeys] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.own = {name: ReadingKeys(**table.keys) for name, table in self.tables.items()}
        self._left_out: list[str] = []
        self._dates: dict[str, dict[str, str]] = {}
        self._na: set[str] = set()
        self._true: set[str] = set()
        self._false: set[str] = set()
        self._categories: list[str] = []
        self._folded: list[str] = []
        self._id = self.how.id

    def compare(self) -> None:
        """Fill in findings and keys."""
        self._report_tables()
        named = {name: table for name, table in self.tables.items() if table.columns}
        if not named:
            return
        if self.views:
            for name, table in named.items():
                for column, profile in table.columns.items():
                    self._judge_column(column, {name: profile})
        else:
            self._match_names(named)
            for column in self._common:
                self._judge_column(column, {name: table.columns[column] for name, table in named.items()})
        self._propose(named)

    def _add(
        self, weight: Weight, text: str, clients: Sequence[str] = (), column: str | None = None, fix: str | None = None
    ) -> None:
        self.findings.append(CheckFinding(weight, text, tuple(clients), column, fix))

    def _report_tables(self) -> None:
        for name, table in self.tables.items():
            for text in table.problems:
                self._add("problem", text, [name])
            keys = [(key, value) for key, value in table.keys.items() if key in ("encoding", "separator", "names")]
            for text, (key, value) in zip(table.remarks, keys, strict=False):
                self._add("problem", text, [name], fix=_write_own(name, key, value))
            for text in table.notes:
                self._add("note", text, [name])
            if 0 < table.rows < _FEW_ROWS_HERE:
                advice = (
                    "" if self.secure else " Secure sums ([secure] enabled = true) hide the sums of single clients."
                )
                self._add(
                    "warning", f"has only {table.rows} rows, so its sums say much about each of them.{advice}", [name]
                )

    def _match_names(self, named: dict[str, TableProfile]) -> None:
        """Columns by name: those that differ in case or blanks are renamed, extra ones are left out."""
        first = next(iter(named.values()))
        usual = Counter(column for table in named.values() for column in table.columns)
        for name, table in named.items():
            folded = {_fold(column): column for column in usual if usual[column] > len(named) / 2}
            renamed = {
                column: folded[_fold(column)]
                for column in table.columns
                if folded.get(_fold(column), column) not in table.columns
            }
            if renamed:
                names = [renamed.get(column, column) for column in table.columns]
                self.own[name]["names"] = names
                table.columns = dict(zip(names, table.columns.values(), strict=True))
                what = ", ".join(f"{old!r} is {new!r} elsewhere" for old, new in renamed.items())
                self._add(
                    "problem",
                    f"Columns are spelled in another way: {what}.",
                    [name],
                    fix=_write_own(name, "names", names),
                )
        sets = [set(table.columns) for table in named.values()]
        asked = set(self.how.columns or ()) | {column for column in self._beside if column}
        everywhere = set.intersection(*sets)
        self._common = [column for column in first.columns if column in everywhere]
        for name, table in named.items():
            extra = [c for c in table.columns if c not in everywhere and (self.how.columns is None or c in asked)]
            if extra and self.how.columns is None:
                self._add(
                    "problem",
                    f"has columns that not all clients have: {', '.join(map(repr, extra))}.",
                    [name],
                    fix="columns = […]",
                )
            lost = [column for column in asked if column not in table.columns]
            if lost:
                self._add(
                    "problem", f"lacks the columns {', '.join(map(repr, sorted(lost)))}, which the job names.", [name]
                )
            shared = [column for column in table.columns if column in everywhere]
            if shared != self._common:
                self._add("note", "has its columns in another order; they are matched by name.", [name])

    @property
    def _features(self) -> list[str]:
        wanted = self._common if self.how.columns is None else [c for c in self.how.columns if c in self._common]
        return [c for c in wanted if c not in (self._id, *self._beside)]

    @property
    def _beside(self) -> tuple[str | None, ...]:
        """Columns that are no features."""
        how = self.how
        named = {*(how.columns or ()), *how.categories}
        return how.id, how.label, how.weight, None if how.group in named else how.group

    def _judge_column(self, column: str, found: Mapping[str, ColumnProfile]) -> None:
        """One column at all clients that have it."""
        if not self.views and self.how.columns is not None and column not in (*self.how.columns, *self._beside):
            return
        gaps = {name: profile.gap_words for name, profile in found.items()}
        for name, words in gaps.items():
            if words:
                self._na |= set(words)
                shown = ", ".join(map(quote_cell, words))
                self._add(
                    "problem",
                    f"contains {shown}, which seems to mean a missing value.",
                    [name],
                    column,
                    f"na_values = {to_toml(words)}",
                )
        if column in self._beside:
            self._judge_spelling(column, found)
            return
        if column in self.how.categories:
            self._judge_spelling(column, found)
            return
        kinds = {name: profile.kind for name, profile in found.items() if profile.kind != "empty"}
        self._judge_kinds(column, found, kinds)

    def _judge_kinds(self, column: str, found: Mapping[str, ColumnProfile], kinds: Mapping[str, ColumnKind]) -> None:
        everyone = set(kinds.values())
        if not kinds:
            self._leave_out("problem", column, found, "is empty at every client.")
        elif self._are_ids(found):
            self._judge_ids(column, found)
        elif everyone <= {"number", "decimal comma"}:
            self._judge_numbers(column, found, kinds)
        elif everyone == {"date"}:
            self._judge_dates(column, found)
        elif everyone <= {"yes/no", "number"} and all(_is_bit(found[name]) for name in kinds):
            self._judge_yes_no(column, found)
        elif everyone <= {"words", "yes/no"}:
            self._judge_words(column, found)
        else:
            self._explain_mixture(column, found, kinds)

    def _explain_mixture(
        self, column: str, found: Mapping[str, ColumnProfile], kinds: Mapping[str, ColumnKind]
    ) -> None:
        told = False
        for name, kind in kinds.items():
            if kind == "mixed":
                profile, told = found[name], True
                word = quote_cell(profile.grouped or profile.texts[0])
                cause = f" (with the unit {profile.unit!r})" if profile.unit else ""
                cause = " (with thousands separators)" if profile.grouped else cause
                self._leave_out("problem", column, {name: profile}, f"contains numbers and also {word}{cause}.")
        if not told:
            what = ", ".join(f"{kind} at {name!r}" for name, kind in kinds.items())
            self._leave_out("problem", column, found, f"is not the same at all clients: {what}.")

    def _leave_out(self, weight: Weight, column: str, found: Mapping[str, ColumnProfile], text: str) -> None:
        if column not in self._left_out:
            self._left_out.append(column)
        self._add(
            weight,
            f"{text} It is left out below; fix the table to keep it.",
            list(found),
            column,
            f"columns without {column!r}",
        )

    def _are_ids(self, found: Mapping[str, ColumnProfile]) -> bool:
        """Whether all cells differ at every client, and they are words or some begin with 0."""
        spelled = any(profile.zeros_first or profile.kind == "words" for profile in found.values())
        return (
            spelled
            and all(profile.may_be_ids for profile in found.values())
            and _count_all_rows(found) > 2 * len(found)
        )

    def _judge_ids(self, column: str, found: Mapping[str, ColumnProfile]) -> None:
        zeros = any(profile.zeros_first for profile in found.values())
        what = "looks like ids: all values differ" + (", and some numbers begin with 0" if zeros else "") + "."
        if self._id is None:
            self._id = column
            self._add("problem", what, list(found), column, f"id = {to_toml(column)}")
        elif column != self._id:
            self._leave_out("problem", column, found, what)

    def _judge_numbers(self, column: str, found: Mapping[str, ColumnProfile], kinds: Mapping[str, ColumnKind]) -> None:
        for name, kind in kinds.items():
            if kind == "decimal comma":
                self.own[name]["decimal"] = ","
                example = next(word for word in found[name].texts)
                self._add(
                    "problem",
                    f"has decimal commas, such as {quote_cell(example)}.",
                    [name],
                    column,
                    _write_own(name, "decimal", ","),
                )
        zeros = [name for name, profile in found.items() if profile.zeros_first]
        if zeros and all(profile.whole == profile.numbers for profile in found.values()):
            text = "is made of numbers that begin with 0, so it looks like codes, which are not to be calculated with."
            self._leave_out("problem", column, {name: found[name] for name in zeros}, text)
            return
        constant = {profile.constant for profile in found.values()}
        if len(constant) == 1 and None not in constant:
            self._leave_out("warning", column, found, f"is {constant.pop()} in every row of every client.")
            return
        if not self.views:
            self._judge_units(column, found)

    def _judge_units(self, column: str, found: Mapping[str, ColumnProfile]) -> None:
        """A client whose mean and spread are a hundred, a thousand or a million times those of the others."""
        sizes = {name: abs(profile.mean) for name, profile in found.items() if profile.counted > 1 and profile.mean}
        if len(sizes) < 2:
            return
        weighted = [size for name, size in sizes.items() for _ in range(min(100, found[name].counted))]
        middle = median_low(weighted)
        spreads = [found[name].spread for name, size in sizes.items() if size == middle]
        for name, size in sizes.items():
            power = find_power(size / middle)
            if power is None or not spreads[0] or not 0.2 < found[name].spread / spreads[0] / power < 5:
                continue
            factor = 1 / power if power > 1 else float(round(1 / power))
            self.own[name].setdefault("multiply", {})[column] = factor
            text = (
                f"has a mean of {found[name].mean:.4g}, about {power:g} times that of the others ({middle:.4g}). Is it "
                "in another unit?"
            )
            self._add("problem", text, [name], column, _write_own(name, "multiply", {column: factor}))

    def _judge_dates(self, column: str, found: Mapping[str, ColumnProfile]) -> None:
        forms = {name: profile.date_forms[0] for name, profile in found.items() if profile.date_forms}
        usual = Counter(forms.values()).most_common(1)[0][0]
        self._dates[column] = {name: forms.get(name, usual) for name in found}
        for form in dict.fromkeys(forms.values()):
            clients = [name for name, own in forms.items() if own == form]
            others = [other for name in clients for other in found[name].date_forms if other != form]
            doubt = f" At {clients[0]!r} it could also be {others[0]!r}." if others else ""
            text = f"contains dates of the form {form!r}.{doubt}"
            key = f"dates = {to_toml({column: form})}"
            fix = key if form == usual else ", ".join(f"{bare_key(name)}: {key}" for name in clients)
            self._add("problem", text, clients, column, fix)

    def _judge_yes_no(self, column: str, found: Mapping[str, ColumnProfile]) -> None:
        words = sorted({word for profile in found.values() for word in profile.texts})
        yes = [word for word in words if word.lower() in TRUE_WORDS]
        no = [word for word in words if word not in yes]
        self._true |= set(yes)
        self._false |= set(no)
        text = f"says yes or no, spelled {', '.join(map(quote_cell, words))}."
        fix = f"true_values = {to_toml(yes)}, false_values = {to_toml(no)}"
        self._add("problem", text, [name for name, profile in found.items() if profile.texts], column, fix)

    def _judge_words(self, column: str, found: Mapping[str, ColumnProfile]) -> None:
        words = {_fold(word) for profile in found.values() for word in profile.texts}
        if len(words) > _MOST_WORDS:
            self._leave_out("problem", column, found, f"is text with more than {_MOST_WORDS} different values.")
            return
        constant = {profile.constant for profile in found.values()}
        if len(constant) == 1 and None not in constant:
            self._leave_out(
                "warning", column, found, f"is {quote_cell(str(constant.pop()))} in every row of every client."
            )
            return
        self._categories.append(column)
        self._add(
            "problem",
            f"contains words ({len(words)} different ones).",
            list(found),
            column,
            f"categories = [{to_toml(column)}]",
        )
        self._judge_spelling(column, found)

    def _judge_spelling(self, column: str, found: Mapping[str, ColumnProfile]) -> None:
        """Words that differ in case or blanks only."""
        if column == self.how.id:
            return
        spelled: dict[str, set[str]] = {}
        for profile in found.values():
            for word in profile.texts:
                spelled.setdefault(_fold(word), set()).add(word)
        variants = sorted(sorted(words) for words in spelled.values() if len(words) > 1)
        if variants:
            self._folded.append(column)
            shown = "; ".join(" and ".join(map(quote_cell, words)) for words in variants[:3])
            fix = f"ignore_case = [{to_toml(column)}]"
            self._add(
                "problem", f"has spellings that differ in case or blanks only: {shown}.", list(found), column, fix
            )

    def _propose(self, named: Mapping[str, TableProfile]) -> None:
        """Put all keys together."""
        usual = {column: Counter(forms.values()).most_common(1)[0][0] for column, forms in self._dates.items()}
        if usual and not self.views:
            self.shared["dates"] = usual
        for name in named:
            dates = {column: forms[name] for column, forms in self._dates.items() if name in forms}
            if dates and (self.views or dates != usual):
                self.own[name]["dates"] = dates
        for key, words in (("na_values", self._na), ("true_values", self._true), ("false_values", self._false)):
            if words:
                self.shared[key] = sorted(words)
        if self._folded:
            self.shared["ignore_case"] = self._folded
        if self._id != self.how.id:
            self.shared["id"] = self._id
        if self._categories:
            self.shared["categories"] = self._list_categories(named)
        if not self.views:
            kept = [column for column in self._features if column not in self._left_out]
            everything = all(set(table.columns) == set(self._common) for table in named.values())
            if self._left_out or (self.how.columns is None and not everything):
                self.shared["columns"] = kept
            used = [*kept, *self._categories, *filter(None, [self.how.label])]
        else:
            used = [column for table in named.values() for column in table.columns if column not in (self._id,)]
        gaps = [
            c for c in dict.fromkeys(used) for table in named.values() if c in table.columns and table.columns[c].gaps
        ]
        if gaps and self.how.missing == "refuse":
            remedy = "drop" if self.private and not self.views else "mean"
            self.shared["missing"] = remedy
            shown = ", ".join(map(repr, dict.fromkeys(gaps[:6])))
            self._add(
                "problem", f"Values are missing in the columns {shown}.", (), None, f"missing = {to_toml(remedy)}"
            )

    def _list_categories(self, named: Mapping[str, TableProfile]) -> object:
        """The columns of words, with those that the job has; their words too where clients must not agree on them."""
        given = dict(self.how.categories)
        with_words = self.private or self.secure or any(given.values())
        if not with_words:
            return [*given, *self._categories]
        for column in self._categories:
            tables = [table for table in named.values() if column in table.columns]
            words = {word for table in tables for word in table.columns[column].texts}
            given[column] = tuple(sorted({_fold_word(word) for word in words} if column in self._folded else words))
        return {column: list(words) for column, words in given.items()}


def _fold_word(word: str) -> str:
    """A word as `ignore_case` reads it."""
    return " ".join(word.casefold().split())


def _count_all_rows(found: Mapping[str, ColumnProfile]) -> int:
    return sum(profile.rows for profile in found.values())


def _is_bit(profile: ColumnProfile) -> bool:
    if profile.kind == "yes/no":
        return True
    return profile.kind == "number" and profile.least >= 0 and profile.most <= 1 and profile.whole == profile.numbers


def _fold(word: str) -> str:
    return " ".join(word.casefold().replace("_", " ").split())


def _write_own(name: str, key: str, value: object) -> str:
    """A key beside a client's path, as it is shown with the finding."""
    shown = "…" if isinstance(value, list) and len(value) > 8 else to_toml(value)
    return f"{bare_key(name)}: {key} = {shown}"
