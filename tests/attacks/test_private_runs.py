"""Attacks on private runs: each succeeds when its defence is taken away, and fails when it is there."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspan import FederatedClassifier, FederatedPCA, Ledger, PersonalizedPCA, RowDP, run
from fedspan.algorithms import NoisyGram, NoisyPower, NoisyRefine
from fedspan.algorithms.spectral.noisy import PrivateClient
from fedspan.channel import wire
from fedspan.channel.stage import Channel
from fedspan.core.checkpoint import Checkpoint
from fedspan.core.ledger import Exchange
from fedspan.core.protocol import declared_releases
from fedspan.deployment.kit import policy_file
from fedspan.deployment.site_service import SiteService
from fedspan.engines import InProcess
from fedspan.engines.questions import CourseCheck, QuestionCheck
from fedspan.engines.start import StartMessage
from fedspan.errors import InputError, PrivacyError
from fedspan.privacy import guard, noise
from fedspan.privacy.accountant import epsilon
from fedspan.privacy.budget import Budget
from fedspan.privacy.plan import plan_for

SITES = ("east", "north", "south")
ROWS = np.random.default_rng(0).normal(size=(300, 4))


def make_site(folder: Path, allowed: float | None = 1.0, **rules: Any) -> SiteService:
    (folder / "local").mkdir(parents=True)
    np.save(folder / "rows.npy", ROWS)
    budget = {} if allowed is None else {"epsilon": allowed, "delta": 1e-6}
    tables = {"default": {"path": str(folder / "rows.npy"), "features": 4}}
    (folder / "local" / "fedspan.toml").write_text(policy_file(tables, secure=False, **budget, **rules))
    if allowed is not None:
        Budget.grant(folder / "fedspan" / "budget.json", allowed, 1e-6)
    return SiteService("north", folder)


def opening(algorithm: Any, epsilon: float = 0.1, **changes: Any) -> dict[str, Any]:
    start = StartMessage("0123456789abcdef", 0, algorithm, Channel(), 1, SITES, RowDP(epsilon, 1e-6, 2.0))
    return {**json.loads(start.to_json()), **changes}


def ask(site: SiteService, task: str, **arrays: Any) -> dict[str, np.ndarray]:
    """The arrays of a site's answer; what it refuses is raised here."""
    question = wire.Message(task, 1, 0, {name: np.asarray(array) for name, array in arrays.items()})
    answer = site.exchange(wire.encode(question), -1)
    if isinstance(answer, str):
        raise PrivacyError(json.loads(answer)["error"])
    return dict(wire.decode(answer).arrays)


POWER = NoisyPower(k=2, d=4, width=2, rounds=3, center=False)


@pytest.mark.parametrize(
    "Z",
    [
        np.eye(4, 2, dtype=np.int64) << 32,  # int64 squares wrap around to 0
        np.eye(4, 2, dtype=np.bool_),
        np.eye(4, 2, dtype=np.float32),
        np.full((4, 2), np.nan),
        np.full((4, 2), np.inf),
        np.eye(4, 2) * 1e3,
        np.eye(5, 2),
        np.eye(4)[:, 0],
        np.zeros((4, 0)),
    ],
    ids=["int64", "bool", "float32", "nan", "inf", "long", "shape", "vector", "empty"],
)
def test_only_questions_for_which_the_noise_is_enough_are_answered(
    tmp_path: Path, Z: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QuestionCheck, "check", lambda *_: None)  # the guard and the client must do without it
    site = make_site(tmp_path)
    assert "opened" in site.open(json.dumps(opening(POWER)))
    with pytest.raises(PrivacyError):
        ask(site, "project", Z=Z)


def test_an_integer_question_would_get_an_exact_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wrapped square passes for orthonormal: the noise is then nothing beside the answer."""
    monkeypatch.setattr(guard, "require_finite_numbers", lambda *_: None)
    monkeypatch.setattr(QuestionCheck, "check", lambda *_: None)
    monkeypatch.setattr(
        PrivateClient, "check_block", lambda self, arrays: arrays["Z"]
    )  # as it was: Z.T @ Z of such integers is 0
    Z = np.eye(4, 2, dtype=np.int64) << 32
    assert np.linalg.norm(Z.T @ Z) == 0
    site = make_site(tmp_path)
    site.open(json.dumps(opening(POWER)))
    steps = ask(site, "project", Z=Z)["Y"] * noise.step(4.0, 8)
    rows = ROWS * np.minimum(1, 2 / np.linalg.norm(ROWS, axis=1))[:, None]
    exact = rows.T @ rows[:, :2]
    np.testing.assert_allclose(steps / 2.0**32, exact, atol=1e-4)


def test_noise_in_an_opening_is_not_known(tmp_path: Path) -> None:
    """A server that says how much noise is to be added is refused: a site works that out by itself."""
    site = make_site(tmp_path)
    plan = {"row_norm": 2.0, "noise": {"triangle": {"G": 1e-9}}, "limits": {"triangle": 9}, "sampled": {"triangle": 1}}
    for changes in ({"plan": plan}, {"privacy": {**opening(POWER)["privacy"], "noise": 1e-9}}):
        answer = site.open(json.dumps(opening(POWER, **changes)))
        assert "error" in json.loads(answer)
    message = StartMessage.from_json(json.dumps(opening(POWER)))
    ours = plan_for(RowDP(0.1, 1e-6, 2.0), declared_releases(PrivateClient), POWER.planned())
    assert message.plan is not None
    assert message.plan.noise == ours.noise


@pytest.mark.parametrize("asked", [1e9, 51.0, 1e-7, float("nan")])
def test_an_epsilon_that_protects_nobody_is_refused(tmp_path: Path, asked: float) -> None:
    tree = opening(POWER)
    tree["privacy"]["epsilon"] = asked
    assert "error" in json.loads(make_site(tmp_path, allowed=None).open(json.dumps(tree)))


def test_rows_that_are_not_finite_give_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal that depends on a value tells about it, at no cost: such rows count as zeros instead."""
    rows = ROWS.copy()
    rows[7, 2] = np.inf
    for rows_here, folder in ((ROWS, "finite"), (rows, "not")):
        site = make_site(tmp_path / folder)
        np.save(tmp_path / folder / "rows.npy", rows_here)
        site.open(json.dumps(opening(NoisyGram(k=1, center=False))))
        assert set(ask(site, "triangle")) == {"G"}
        assert Budget(tmp_path / folder / "fedspan" / "budget.json").spent > 0, "charged all the same"


def test_the_same_question_has_the_same_answer_and_others_have_fresh_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking again and again averages the noise away, unless the answer is the same bytes."""
    algorithm, budget = NoisyGram(k=1, center=False), tmp_path / "fedspan" / "budget.json"
    site, answers = make_site(tmp_path), []
    for again in range(6):
        site = site if again % 2 else SiteService("north", tmp_path)  # the process ended, and began anew
        assert "opened" in site.open(json.dumps(opening(algorithm)))
        answers.append(ask(site, "triangle")["G"])
    assert all(np.array_equal(answer, answers[0]) for answer in answers)
    assert Budget(budget).spent == pytest.approx(
        epsilon({(plan_of(algorithm).multiplier("triangle"), 1.0): 1}, 1e-6), rel=1e-6
    )
    other = {**opening(algorithm), "run": "fedcba9876543210"}
    SiteService("north", tmp_path)
    site.open(json.dumps(other))
    assert np.mean(ask(site, "triangle")["G"] == answers[0]) < 0.5, "another run, fresh noise"

    fresh = iter(range(100))
    draw = noise.keyed_normal
    monkeypatch.setattr(noise, "keyed_normal", lambda seed, size: draw(seed + bytes([next(fresh)]), size))
    seen = []
    for _ in range(20):
        site = SiteService("north", tmp_path)
        site.open(json.dumps(opening(algorithm)))
        seen.append(ask(site, "triangle")["G"])
    assert np.std(np.mean(seen, axis=0) - answers[0]) > 0, "with fresh noise it would average out"
    assert len({answer.tobytes() for answer in seen}) == 20


def plan_of(algorithm: Any, eps: float = 0.1) -> Any:
    return plan_for(RowDP(eps, 1e-6, 2.0), declared_releases(PrivateClient), algorithm.planned())


def test_a_question_beyond_the_plan_is_refused_in_words_and_changed_rows_by_a_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan follows from the job alone. That rows have changed since they were sent depends on values."""
    monkeypatch.setattr(CourseCheck, "check", lambda *_: None)  # which would refuse another mean before the plan does
    algorithm, budget = NoisyGram(k=1), tmp_path / "fedspan" / "budget.json"
    site = make_site(tmp_path)
    assert "opened" in site.open(json.dumps(opening(algorithm)))
    first, spent = ask(site, "triangle", mean=np.zeros(4))["G"], Budget(budget).spent
    with pytest.raises(PrivacyError, match="would exceed the plan, which allows 1"):
        ask(site, "triangle", mean=np.ones(4))
    np.testing.assert_array_equal(ask(site, "triangle", mean=np.zeros(4))["G"], first)  # the run goes on
    assert Budget(budget).spent == spent
    np.save(tmp_path / "rows.npy", ROWS + 1)
    site = SiteService("north", tmp_path)
    assert "opened" in site.open(json.dumps(opening(algorithm)))
    with pytest.raises(PrivacyError, match=r"^refused \[\w+\]$"):
        ask(site, "triangle", mean=np.zeros(4))
    assert Budget(budget).spent == spent

    monkeypatch.setattr(Budget, "send", lambda *_: None)
    monkeypatch.setattr(Budget, "confirm", lambda *_: None)
    site = SiteService("north", tmp_path)
    site.open(json.dumps(opening(algorithm)))
    assert ask(site, "triangle", mean=np.ones(4)).keys() == {"G"}


def test_nothing_is_reserved_for_a_run_that_is_refused(tmp_path: Path) -> None:
    site = make_site(tmp_path)
    refused = opening(NoisyGram(k=1), clients=("east", "south"))
    assert "not among the clients" in site.open(json.dumps(refused))
    assert Budget(tmp_path / "fedspan" / "budget.json").account.runs == ()


def test_another_opening_of_the_same_run_has_other_noise(tmp_path: Path) -> None:
    """Two openings that differ in who is there scale the same noise differently: together they would show the rows."""
    site = make_site(tmp_path, allowed=1.0)
    algorithm, answers = NoisyGram(k=1, center=False), []
    for sites in (SITES, ("north", "south")):
        assert "opened" in site.open(json.dumps(opening(algorithm, clients=sites)))
        answers.append(ask(site, "triangle")["G"])
    assert np.mean(answers[0] == answers[1]) < 0.5
    runs = Budget(tmp_path / "fedspan" / "budget.json").account.runs
    assert len(runs) == 2, "and both are charged"


def test_noise_is_shared_only_if_all_sites_must_be_in_a_sum() -> None:
    """Else the difference of two sums, with and without a site, has that site's small share of the noise only."""
    start = StartMessage("0123456789abcdef", 0, NoisyGram(k=1), Channel(), 1, SITES, RowDP(1.0, 1e-6, 2.0))
    spread = {t: replace(start, threshold=t).plan for t in (None, 2, 3)}
    assert {t: plan.spread for t, plan in spread.items() if plan} == {None: 1, 2: 1, 3: 3}


class CutOffError(Exception):
    pass


def interrupt_after(fits: Callable[[Any], Any], answers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut a run off after so many answers have left."""
    from fedspan.engines.site import Site

    handle, count = Site.handle, [0]

    def cut(self: Site, *given: Any) -> Any:
        reply = handle(self, *given)
        count[0] += 1
        if count[0] > answers:
            raise KeyboardInterrupt
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(Site, "handle", cut)
        with pytest.raises(KeyboardInterrupt):
            fits(None)


@pytest.mark.parametrize("answers", range(6))
@pytest.mark.parametrize("budgets", [False, True])
def test_a_resumed_fit_goes_on_with_its_ledger_and_pays_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: int, budgets: bool
) -> None:
    """Cut off anywhere and resumed with a new ledger: ε is what was planned, and what each client counts."""
    for name in ("0", "1"):
        Budget.grant(tmp_path / "budgets" / f"{name}.json", 1.00001, 1e-6)
    dp = RowDP(1.0, 1e-6, 2.0, budgets=tmp_path / "budgets" if budgets else None)
    data = [ROWS, ROWS[:200]]
    warnings.simplefilter("ignore", UserWarning)

    def fit(_: Any) -> FederatedPCA:
        model = FederatedPCA(1, solver=NoisyPower(width=2, rounds=2), privacy=dp, checkpoint=tmp_path / "run")
        model.set_params(random_state=3, engine=lambda tables: InProcess(tables, threads=1))
        return model.fit(data)

    interrupt_after(fit, answers, monkeypatch)
    model = fit(None)
    assert model.ledger_.epsilon(1e-6) == pytest.approx(1.0, rel=1e-6)
    if budgets:
        assert Budget(tmp_path / "budgets" / "0.json").spent == pytest.approx(1.0, rel=1e-6)


def test_without_its_ledger_a_resumed_fit_would_say_less_than_it_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = NoisyPower(k=1, d=4, width=2, rounds=4, center=False)
    plan = plan_of(server, 1.0)

    def fit(folder: str, rounds: int) -> Ledger:
        ledger = Ledger()
        run(
            server, InProcess([ROWS]), rounds=rounds, seed=0, privacy=plan, ledger=ledger,
            checkpoint=Checkpoint(tmp_path / folder),
        )  # fmt: skip
        return ledger

    fit("good", 2)
    assert fit("good", 4).epsilon(1e-6) == pytest.approx(1.0, rel=1e-6)
    monkeypatch.setattr(Ledger, "mirror", lambda self, path: None)
    fit("bad", 2)
    assert fit("bad", 4).epsilon(1e-6) < 0.8


def everything_that_left(tmp: Path, rows: np.ndarray, job: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
    """(outside of declared releases, the releases) of a whole job on that table: messages, notes, warnings, errors."""
    ledger, engine = Ledger(), None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            engine = InProcess({"a": rows, "b": ROWS[:150]}, threads=1, transcript=tmp)
            end = type(job(engine, ledger)).__name__
        except InputError as error:
            end = str(error)
    outside: list[Any] = [end, *sorted({str(w.message) for w in warned})]
    for event in ledger.events:
        if isinstance(event, Exchange):
            outside.append((event.round, event.task, event.clients, event.bytes_up, event.missing, event.failures))
        elif type(event).__name__ == "Note":
            outside.append(str(event))
    inside = [path.read_bytes() for path in sorted(tmp.rglob("*")) if path.is_file() and "up" in path.name]
    return outside, inside


def fit_pca(solver: Any = "auto", row_norm: Any = 2.0, **more: Any) -> Callable[..., Any]:
    def job(engine: Any, ledger: Ledger) -> Any:
        dp = RowDP(1.0, 1e-6, row_norm, **more)
        model = FederatedPCA(1, solver=solver, privacy=dp, engine=engine, random_state=0)
        return model.fit(engine.data, ledger=ledger)

    return job


def fit_personal(engine: Any, ledger: Ledger) -> Any:
    dp = RowDP(1.0, 1e-6, 2.0)
    return PersonalizedPCA(1, privacy=dp, collect=False, engine=engine, random_state=0).fit(engine.data, ledger=ledger)


def fit_classifier(class_weight: Any = None) -> Callable[..., Any]:
    """Labels follow from the number of a row, so that a row more has one, too."""

    def job(engine: Any, ledger: Ledger) -> Any:
        labels = {name: np.arange(len(rows)) % 2 for name, rows in engine.data.items()}
        where = engine.transcript

        def start(rows: Any) -> InProcess:
            return InProcess(rows, threads=1, transcript=where)

        model = FederatedClassifier(hidden=2, batch_size=30, rounds=3, class_weight=class_weight, random_state=0)
        model.set_params(privacy=RowDP(1.0, 1e-6, 1.0), engine=start, standardize=False)
        return model.fit(engine.data, labels, ledger=ledger)

    return job


JOBS: dict[str, Callable[..., Any]] = {
    "gram": fit_pca(),
    "robust": fit_pca(center="robust"),
    "narrow": fit_pca("ssi"),
    "classifier": fit_classifier(),
    "balanced classifier": fit_classifier("balanced"),
    "auto": fit_pca(row_norm="auto"),
    "unit": fit_pca(row_norm="unit"),
    "refine": fit_pca(NoisyRefine()),
    "block": fit_pca(NoisyPower(width=2)),
    "personal": fit_personal,
}


def hide_release(self: guard.Guard, admission: Any, releases: Any, arrays: Any) -> Any:
    """Noise alone in place of what is released, as if the noise had made up for a row."""
    rng = np.random.default_rng(int(admission.release[:8], 16))
    return {key: np.rint(300 + 20 * rng.normal(size=x.shape)).astype(np.int64) for key, x in arrays.items()}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("row", ["usual", "long", "nan"])
def test_neighbours_give_the_same_bytes_outside_of_declared_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, row: str
) -> None:
    """The whole job on two tables that differ in one row, with what is released made equal: all else must be equal.

    Every release is replaced by noise alone (as if the noise had made up for the row), so whatever differs then has
    found another way out.
    """
    more = {"usual": np.ones(4), "long": np.full(4, 1e200), "nan": np.full(4, np.nan)}[row]
    tables = ROWS, np.vstack([ROWS, more])

    monkeypatch.setattr(guard.Guard, "protect", hide_release)
    (one, first), (two, second) = (
        everything_that_left(tmp_path / str(i), rows, JOBS[name]) for i, rows in enumerate(tables)
    )
    assert one == two
    assert first == second
    assert len(first) >= 4


def test_an_exact_count_in_a_note_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: here the clients' schema leaks into a note, as it once did."""
    from fedspan.estimators import pca

    keep = pca.open_clients

    def tell(clients: Any, **more: Any) -> Any:
        data, schema = keep(clients, **more)
        warnings.warn(f"{schema.rows} rows", stacklevel=2)
        return data, schema

    monkeypatch.setattr(pca, "open_clients", tell)
    one, two = (
        everything_that_left(tmp_path / str(i), rows, JOBS["gram"])[0]
        for i, rows in enumerate((ROWS, np.vstack([ROWS, np.ones(4)])))
    )
    assert [x for x in one if x not in two] == ["450 rows"] or "450 rows" in one
    assert one != two


@pytest.mark.parametrize("name", JOBS)
def test_an_exact_count_in_a_note_would_be_seen_in_every_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The same leak from the clients' side, with all that is released made equal: each client says how many rows."""
    from fedspan.engines.site import Site

    handle = Site.handle

    def tell(self: Site, message: Any, client: Any) -> Any:
        warnings.warn(f"{client.rows.n} rows", stacklevel=2)
        return handle(self, message, client)

    monkeypatch.setattr(guard.Guard, "protect", hide_release)
    tables = ROWS, np.vstack([ROWS, np.ones(4)])
    honest = [everything_that_left(tmp_path / f"honest{i}", rows, JOBS[name])[0] for i, rows in enumerate(tables)]
    monkeypatch.setattr(Site, "handle", tell)
    leaky = [everything_that_left(tmp_path / f"leaky{i}", rows, JOBS[name])[0] for i, rows in enumerate(tables)]
    assert honest[0] == honest[1]
    assert leaky[0] != leaky[1]
