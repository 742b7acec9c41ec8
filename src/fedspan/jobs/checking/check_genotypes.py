"""The check of a job with genotypes: every file is opened, and the variants of all are compared."""

from __future__ import annotations

from fedspan.algorithms.field.agree_variants import VariantsClient
from fedspan.algorithms.field.match_variants import match_variants
from fedspan.algorithms.field.variants import Variant
from fedspan.core.protocol import tasks_of
from fedspan.data.clients import blame_client
from fedspan.data.genotypes.genotype_files import open_genotypes
from fedspan.errors import InputError
from fedspan.estimators.field.prepare_genotypes import GenotypeOptions
from fedspan.jobs.checking.check_result import CheckFinding, CheckResult, Weight
from fedspan.jobs.model import Job


def check_genotype_files(job: Job, asked: GenotypeOptions) -> CheckResult:
    """Everything that is wrong with the files by themselves, else with their variants together."""
    findings, each = list[CheckFinding](), dict[str, list[Variant]]()
    for name, place in sorted(job.places().items()):
        try:
            with blame_client(name):
                file = open_genotypes(place)
        except InputError as error:
            findings.append(CheckFinding("problem", str(error), (name,)))
            continue
        each[name] = file.variants
        text = f"client {name!r}: {len(file.samples):,} samples, {len(file.variants):,} variants."
        findings.append(CheckFinding("note", text, (name,)))
    if len(each) == len(job.clients):
        findings += _compare_variants(each, asked)
    known = tasks_of(VariantsClient)
    leaves = [f"once: {known[name].shows}" for name in sorted(asked.to_server().asks())]
    findings.sort(key=lambda finding: ("problem", "warning", "note").index(finding.weight))
    return CheckResult(findings, {}, None, leaves)


def _compare_variants(each: dict[str, list[Variant]], asked: GenotypeOptions) -> list[CheckFinding]:
    try:
        matched = match_variants(each, "drop", asked.autosomes)
    except InputError as error:
        return [CheckFinding("problem", str(error))]
    weight: Weight = "problem"
    fix: str | None = 'genotypes.differing = "drop" leaves these variants out'
    if asked.differing == "drop":
        weight, fix = "warning", None
    found = [CheckFinding(weight, f"{text[0].upper()}{text[1:]}.", (), None, fix) for text in matched.problems]
    return [*found, *(CheckFinding("note", text) for text in matched.notes)]
