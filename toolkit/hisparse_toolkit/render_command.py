"""`hisparse render`: the objects that the operator would make of a manifest, as YAML."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import yaml

from hisparse.acceptance import advice
from hisparse.errors import SpecError, UnitError
from hisparse.model import facts_for, needs_hub
from hisparse.spec import parse_spec
from hisparse.units import format_quantity, parse_quantity
from hisparse_toolkit import hub
from hisparse_toolkit.counts import bounded
from hisparse_toolkit.manifest import Manifest, read_manifest
from hisparse_toolkit.model_source import near_model
from hisparse_toolkit.problems import BadInputError, ExitCode, NoAnswerError, NotFoundOutError, Problem, bad
from hisparse_toolkit.question import DEFAULT_GPU, named_gpu
from hisparse_toolkit.streams import tell

DEFAULT_MEMORY: Final = "2Ti"
PAGE_WIDTH: Final = 100


@dataclass(frozen=True)
class Hardware:
    """The one kind of node that the cluster is imagined to have."""

    product: str | None = None
    gpus: str = "8"
    memory: str = DEFAULT_MEMORY


def run_render(file: str | None, hardware: Hardware, *, no_hub: bool, engine_image: str | None) -> ExitCode:
    """Print the children on stdout, say on stderr why there are none, and return the exit code."""
    try:
        if file is None:
            raise bad("--file", "is needed and not set; name a manifest, as in -f examples/glm-5.3-1m.yaml")
        manifest = read_manifest(file)
        text, warnings = _rendered(manifest, hardware, no_hub=no_hub, engine_image=engine_image)
    except NoAnswerError as error:
        for problem in error.problems:
            tell(problem)
        return error.code
    except _DoesNotFitError as error:
        tell(error)
        return ExitCode.NO
    print(text, end="")
    for warning in warnings:
        tell(f"warning: {warning}")
    return ExitCode.WARNING if warnings else ExitCode.YES


class _DoesNotFitError(Exception):
    """The operator would make no children; the message is its own."""


def _rendered(
    manifest: Manifest, hardware: Hardware, *, no_hub: bool, engine_image: str | None
) -> tuple[str, tuple[str, ...]]:
    """The objects as YAML, and the warnings that `hisparse plan` has for the same question."""
    from hisparse_operator.settings import OperatorSettings  # noqa: PLC0415  only this command needs the operator
    from hisparse_operator.world import HubFiles  # noqa: PLC0415
    from hisparse_toolkit.offline import node, render  # noqa: PLC0415

    memory, gpus = _memory(hardware.memory), bounded("--node-gpus", hardware.gpus)
    try:
        spec = parse_spec(manifest.spec, metadata=manifest.metadata)
    except SpecError as error:
        raise BadInputError.of(error) from None
    products = (hardware.product,) if hardware.product else tuple(spec.resources.gpu_products or (DEFAULT_GPU,))
    products = tuple(named_gpu(product, "--product")[1] for product in products)
    source = spec.model.hugging_face
    files = None
    if needs_hub(spec.model) and source is not None:
        off, near = hub.why_off(no_hub=no_hub), near_model(source.repo)
        found = hub.hub_files(source.repo, source.revision, off=off, near=near)
        files = HubFiles(found.config, found.index)
    settings = OperatorSettings(engine_image=engine_image) if engine_image else OperatorSettings()
    nodes = tuple(node(product, gpus, memory) for product in products)
    rendered = render(manifest.document, nodes, files, settings)
    for kind in ("Accepted", "PlanFeasible"):
        condition = rendered.condition(kind)
        if condition is None or condition["status"] == "True" or rendered.children:
            continue
        if kind == "Accepted":
            raise bad(manifest.name, f"{condition['reason']}: {condition['message']}")
        if condition["status"] == "False":
            raise _DoesNotFitError(f"{manifest.name}: {condition['reason']}: {condition['message']}")
        raise NotFoundOutError([Problem(manifest.name, f"{condition['reason']}: {condition['message']}")])
    if not rendered.children:
        raise bad("spec", "asks for no children (planOnly or paused); set both to false to see them")
    head = (
        f"# What hisparse-operator makes of {manifest.name} where nodes have {gpus} x {', '.join(products)} "
        f"and {format_quantity(memory)} of memory.\n"
        "# In the cluster each object also names the HiSparseInference as its owner.\n"
    )
    documents = (yaml.safe_dump(_plain(one), sort_keys=False, width=PAGE_WIDTH) for one in rendered.children)
    facts = facts_for(
        spec.model,
        hub_config=files.config if files else None,
        hub_index=files.safetensors_index if files else None,
    )
    return head + "".join(f"---\n{document}" for document in documents), (*rendered.warnings, *advice(spec, facts))


def _plain(value: object) -> object:
    """Tuples, mappings and enums as the lists, dicts and texts that YAML knows."""
    return json.loads(json.dumps(value))


def _memory(text: str) -> int:
    try:
        memory = parse_quantity(text)
    except UnitError as error:
        raise bad("--node-memory", str(error)) from None
    if memory < 1024**3:
        raise bad("--node-memory", f'"{text}" is below 1Gi; set the memory of one node, as in "2Ti"')
    return memory
