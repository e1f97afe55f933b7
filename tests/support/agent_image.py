"""Agent and actuator as a container image, from the lock and this checkout, without Docker.

What node_agent/Dockerfile says of the image (extra, account, environment, entry point) is read from it, so that a pod
of this image tells about that one too. Only how packages get in differs: they lie in a folder beside the programs.
"""

from __future__ import annotations

import json
import re
from typing import Final

from operator_image import ROOT, installed_files

from hisparse_testenv import images
from hisparse_testenv.images import Image

DOCKERFILE: Final = ROOT / "node_agent" / "Dockerfile"
REFERENCE: Final = "testenv.hisparse.dev/hisparse-agent:e2e"
SITE: Final = "/opt/hisparse/site"
PROGRAMS: Final = {"hisparse-agent": "hisparse_agent.__main__", "hisparse-actuator": "hisparse_agent.actuator.__main__"}


def agent_image() -> Image:
    """Build it; packages come from uv's cache where they are there."""
    text = DOCKERFILE.read_text()
    (extra,) = set(re.findall(r"--extra (\S+)", text))
    files = installed_files(extra, SITE)
    for name, module in PROGRAMS.items():
        files[f"/opt/hisparse/bin/{name}"] = f"#!/usr/bin/python3\nfrom {module} import main\nmain()\n".encode()
    # as in a virtual environment, every Python that is started finds the packages
    files["/usr/lib/python3/dist-packages/hisparse-site.pth"] = f"{SITE}\n".encode()
    return images.image_with(files, images.base_image(), REFERENCE, settings=settings_of(text))


def settings_of(dockerfile: str) -> dict[str, object]:
    """What the last stage of a Dockerfile sets of an image's config."""
    stage = dockerfile.rsplit("\nFROM ", 1)[1].replace("${PATH}", images.PATH)
    environment = [pair for line in re.findall(r"^ENV (.+)$", stage, re.MULTILINE) for pair in line.split()]
    (user,) = re.findall(r"^USER (\S+)$", stage, re.MULTILINE)
    (entry,) = re.findall(r"^ENTRYPOINT (\[.+\])$", stage, re.MULTILINE)
    return {"Env": environment, "User": user, "Entrypoint": json.loads(entry)}
