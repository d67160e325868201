"""PodDisruptionBudgets that select the members of a job: what a drain of their node meets. Values in, values
out.

A drain, an autoscaler and whoever else empties a node evicts pods through the API, which asks the budgets.
One that allows nothing holds the drain until the training ends; of two for one pod the API server knows no
answer (500), so that it is never evicted. Without a budget a member goes, and its job starts it again by its
own rule (policy.restart), from its checkpoint.

Sources: Kubernetes, pkg/registry/core/pod/storage/eviction.go; disruption controller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from allaboard.backends.check import WARNING, Check
from allaboard.backends.kubernetes.client.values import at, dicts, mapping, scalars, text, texts
from allaboard.backends.kubernetes.discovery.capacity import Pods
from allaboard.backends.kubernetes.preflight.lookup import Json
from allaboard.diagnosis import Evidence


def judge(pods: Sequence[Pods], budgets: Sequence[Json] | None) -> Iterator[Check]:
    """``budgets``: those of the namespace; None when they may not be read."""
    if budgets is None:
        summary = "PodDisruptionBudgets may not be read; whether one selects the members is unknown"
        yield Check("disruption_budget", None, summary, severity=WARNING)
        return
    of_role = {group.role: [budget for budget in budgets if selects(budget, group.labels)] for group in pods}
    if not any(of_role.values()):
        summary = "no PodDisruptionBudget selects the members: a drained node lets them go at once"
        yield Check("disruption_budget", True, summary)
        return
    for role, several in of_role.items():
        if len(several) > 1:
            names = ", ".join(_name(budget) for budget in several)
            summary = f"{names} select the same pods of {role}, and the API server evicts none of them"
            fix = "change the selectors until one budget is left, or the labels in pod.metadata"
            quotes = tuple(_quoted(budget) for budget in several)
            yield Check("disruption_budget", False, summary, quotes, fix, WARNING)
            return
    selecting = {_name(several[0]): several[0] for several in of_role.values() if several}
    for name, budget in selecting.items():
        if never_allows(budget):
            summary = f"PodDisruptionBudget {name} allows no eviction: drains of their nodes wait for its end"
            fix = "allow one (maxUnavailable: 1), or tell who drains nodes how long the job takes"
            yield Check("disruption_budget", False, summary, (_quoted(budget),), fix, WARNING)
        else:
            summary = f"PodDisruptionBudget {name} selects the members: drains take as many as it allows"
            yield Check("disruption_budget", True, summary, (_quoted(budget),))


def selects(budget: Json, labels: Mapping[str, str]) -> bool:
    """True if a budget (policy/v1) is about pods with these labels. An empty selector is about all."""
    selector = at(budget, "spec", "selector")
    if selector is None:
        return False
    pairs, rules = texts(at(selector, "matchLabels")), dicts(at(selector, "matchExpressions"))
    return all(labels.get(k) == v for k, v in pairs.items()) and all(_fits(rule, labels) for rule in rules)


def _fits(rule: Json, labels: Mapping[str, str]) -> bool:
    key, values = text(rule.get("key")), scalars(rule.get("values"))
    return {
        "In": key in labels and labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }.get(str(rule.get("operator")), False)


def never_allows(budget: Json) -> bool:
    """True if no number of healthy pods makes it allow an eviction."""
    spec = mapping(budget.get("spec"))
    return str(spec.get("maxUnavailable")) in ("0", "0%") or str(spec.get("minAvailable")) == "100%"


def _name(budget: Json) -> str:
    return text(at(budget, "metadata", "name"))


def _quoted(budget: Json) -> Evidence:
    spec = mapping(budget.get("spec"))
    parts = [f"{name}: {spec[name]}" for name in ("minAvailable", "maxUnavailable") if name in spec]
    return Evidence(f"poddisruptionbudget/{_name(budget)}", "spec", ", ".join(parts))
