"""The scripted side of an agentic conversation: what the user, and the tools, say at each turn."""

import json
import random
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {field: {"type": "string", "description": f"the {field}"} for field in fields},
                "required": fields,
            },
        },
    }
    for name, description, fields in (
        ("list_pods", "List the pods of a namespace with their state and restarts.", ["namespace"]),
        ("read_log", "Read the last lines of one pod's log.", ["namespace", "pod"]),
        ("query_metrics", "Run a range query against the metrics store.", ["query", "range"]),
        ("apply_change", "Apply a reviewed change to the cluster.", ["change", "reason"]),
    )
]

STEPS: tuple[tuple[str, str | None, dict[str, str]], ...] = (
    ("Checkout is slow since noon. Find out why.", "list_pods", {"namespace": "shop"}),
    ("Look at the pod that restarts.", "read_log", {"namespace": "shop", "pod": "cart-6f7"}),
    ("Is it memory?", "query_metrics", {"query": "container_memory_rss", "range": "2h"}),
    ("Compare with last week.", "query_metrics", {"query": "container_memory_rss", "range": "7d"}),
    ("Which release brought it?", "read_log", {"namespace": "deploy", "pod": "rollout-controller"}),
    ("Roll that release back.", "apply_change", {"change": "rollback cart", "reason": "memory leak"}),
    ("Write the incident note for the team.", None, {}),
)


def system_prompt(seed: int) -> str:
    """Differs from its first words on by the seed, so that two conversations share nothing."""
    source = random.Random(seed)  # noqa: S311 - only has to be repeatable
    rules = (
        f"Runbook {source.randrange(10_000)}-{number}: before touching {part}, read {part}'s owners file, "
        f"check error budget {source.randrange(1, 99)} and note the change window."
        for number in range(1, 19)
        for part in (source.choice(("cart", "search", "payments", "catalogue", "ledger", "mail")),)
    )
    return f"Shift {seed}. You are the on-call assistant of a web shop.\n" + "\n".join(rules)


def tool_result(name: str, turn: int, seed: int) -> str:
    """A few hundred tokens, as tools really return."""
    source = random.Random(seed * 100 + turn)  # noqa: S311 - only has to be repeatable
    rows = (
        f"{source.randrange(24):02}:{source.randrange(60):02} {source.choice(('cart', 'search', 'mail'))}-"
        f"{source.randrange(0x10000):04x} {source.choice(('ready', 'restarting', 'pending'))} "
        f"rss={source.randrange(90, 900)}Mi"
        for _ in range(14)
    )
    return f"{name}:\n" + "\n".join(rows)


def scripted_turns(seed: int) -> Iterator[list[Message]]:
    """What to append before each request; the assistant's reply is appended by the caller in between."""
    pending: list[Message] = [{"role": "system", "content": system_prompt(seed)}]
    for turn, (question, tool, arguments) in enumerate(STEPS):
        yield [*pending, {"role": "user", "content": question}]
        pending = []
        if tool is not None:
            call_id = f"call_{seed}_{turn}"
            function = {"name": tool, "arguments": json.dumps(arguments)}
            pending = [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": call_id, "type": "function", "function": function}],
                },
                {"role": "tool", "tool_call_id": call_id, "content": tool_result(tool, turn, seed)},
            ]
