"""The catalogue: every check that a node agent can judge from what it reads of its node.

The figures are defaults for H200 SXM. Where no source is named they are this project's choice, said as "chosen";
"measured" means on one or two H200 SXM with driver 580.159.04. Remedies are what a person runs: nothing in this file
acts, and only the verbs named in `verbs` can be allowed by a HiSparseNodePolicy.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from hisparse.nodes.catalogue import Check, NodeCondition, Pace, Subject, Threshold, Verb

_POLLS_PER_HOUR: Final = 3600 // Pace.GPU.seconds

_HALF_SPEED: Final = (
    "The host tier is read over this link: at half of 55 GB/s every token that reads KV from host memory takes up to "
    "twice as long."
)
_SLOWER_CLOCK: Final = "The GPU runs at lower clocks: prefill and decode of everything on this node slow down."
_TENSOR_PARALLEL: Final = (
    "Tensor parallel groups on this node move activations over the remaining links: all of their requests slow down."
)

_INVENTORY: Final = (
    Check(
        id="gpu.count",
        subject=Subject.HOST,
        signal="GPUs that NVML lists, against what the Node object or GPU feature discovery promises",
        critical_when="NVML lists fewer GPUs than promised",
        reason="GpuMissing",
        summary="A GPU is gone from the node.",
        remedy="compare nvidia-smi -L with lspci -d 10de:, drain the node and reboot it",
        runbook="Run `nvidia-smi -L` and `lspci -d 10de:`. A card that lspci lists and nvidia-smi does not has fallen "
        'off the bus: look for it with `dmesg | grep -iE "xid|fallen off"`, drain the node and reboot it. A card that '
        "neither lists needs a visit. If the node was built with fewer, correct its label nvidia.com/gpu.count.",
        source="a GPU can fall off the bus without any Xid (NVSentinel issue 155)",
        unit="count",
        enter_polls=3,
        leave_polls=10,
        boot_grace_s=300,
        condition=NodeCondition.GPU,
        decides=True,
        taints=True,
        cost="Replicas that need all GPUs of this node cannot start here.",
    ),
    Check(
        id="gpu.lost",
        subject=Subject.GPU,
        signal="NVML answers GPU_IS_LOST",
        critical_when="NVML answers GPU_IS_LOST",
        reason="GpuLost",
        summary="The driver has lost the GPU.",
        remedy="drain the node, reboot it, and have the card looked at if it is lost again",
        runbook="Run `nvidia-smi -q -i INDEX` and `dmesg | grep -i xid`. Nothing that runs on the card comes back. "
        "Drain the node and reboot it; a second loss of the same card is a hardware fault.",
        source="NVML, nvmlReturn GPU_IS_LOST",
        enter_polls=1,
        leave_polls=None,
        condition=NodeCondition.GPU,
        decides=True,
        taints=True,
        cost="The engine on this GPU has failed or will fail: its requests and its KV pool are gone.",
    ),
    Check(
        id="gpu.recovery_action",
        subject=Subject.GPU,
        signal="NVML field 230: what the driver says must be done to recover the GPU",
        warn_when="the action is 3, drain P2P",
        critical_when="any other action but none",
        reason="RecoveryNeeded",
        summary="The driver asks for a reset, a drain or a reboot.",
        remedy="drain the node and do what the driver asks for",
        runbook='Run `nvidia-smi -q -i INDEX | grep -i "recovery action"`. Drain the node first. Reset: stop the DCGM '
        "exporter and this agent on the node (they hold the card open), then `nvidia-smi --gpu-reset -i INDEX`. "
        "Reboot: reboot the node. Drain P2P: finish the running work, then reset.",
        source="NVML header 12.8 and newer, field 230; answered by driver 580.159.04 (measured)",
        enter_polls=2,
        leave_polls=5,
        condition=NodeCondition.GPU,
        cost="The GPU may fail at any time; an engine restart costs its whole KV pool.",
    ),
    Check(
        id="xid",
        subject=Subject.GPU,
        signal="Xids by number and by their words Fatal and Nonfatal: lines of the kernel log, or where the agent may "
        "not read that what NVML told since the agent's start",
        warn_when="63, 94 or a line of an NVLink error (144 to 150) or of a switch that is not Fatal, not older than "
        "an hour",
        critical_when="46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 142, 143, 151, 155, 156, 158, a GPU "
        "that has fallen off the bus, or a line with the word Fatal",
        reason="Xid",
        summary="The driver has logged a GPU error that does not come from the application.",
        remedy="look the number up in NVIDIA's Xid list, drain the node and reset the GPU",
        runbook="Run `dmesg -T | grep -iE 'xid|sxid'` and look the number up in NVIDIA's Xid list. Numbers of "
        "applications (13, 31, 43, 45) are not faults of the node and are not counted. After a fatal one drain the "
        "node, reset the GPU or reboot. Xid 119 may be logged by the monitors themselves: stop them before a reset.",
        source="Xid classes as the EKS node monitoring agent 1.7.0 sorts them; the words of Xid 144 to 150 decide, "
        "not the number (NVIDIA Xid list)",
        enter_polls=1,
        leave_polls=_POLLS_PER_HOUR,
        critical_stays=True,
        condition=NodeCondition.GPU,
        taints=True,
        cost="Engines on this GPU may have failed or compute on a card with faults.",
    ),
    Check(
        id="ecc.remap",
        subject=Subject.GPU,
        signal="row remapping: pending, or failed (NVML fields 144 and 145)",
        warn_when="a row is remapped at the next reset",
        critical_when="remapping has failed",
        reason="RowRemap",
        summary="A memory row is to be replaced at the next reset, or could not be replaced.",
        remedy="drain the node and reset the GPU; replace the card if remapping failed",
        runbook="Run `nvidia-smi -q -d ROW_REMAPPER -i INDEX`. Pending: reset the GPU when the node is drained, the "
        "row is replaced then. Failure: the card has no spare rows left and must be replaced.",
        source="NVML GetRemappedRows",
        enter_polls=1,
        leave_polls=1,
        condition=NodeCondition.GPU,
        taints=True,
        cost="None while it is pending. After a failure uncorrectable errors end the engine.",
    ),
    Check(
        id="ecc.uncorrected",
        subject=Subject.GPU,
        signal="uncorrected ECC errors since the driver was loaded",
        reason="UncorrectedEcc",
        summary="GPU memory has lost data since the driver was loaded.",
        remedy="drain the node and reset the GPU; watch whether it comes back",
        runbook="Run `nvidia-smi -q -d ECC,ROW_REMAPPER -i INDEX`. The process that touched the page has been ended by "
        "the driver. Drain the node and reset the GPU, so that the row is remapped.",
        source="NVML, volatile count of double bit errors",
        unit="count",
        threshold=Threshold(critical="0"),
        enter_polls=1,
        leave_polls=None,
        condition=NodeCondition.GPU,
        cost="The engine that used the page has failed; its KV pool is gone.",
    ),
)

_SXM_LINKS: Final = Threshold(critical="18", rising=False)
_AMPERE_LINKS: Final = Threshold(critical="12", rising=False)

_LINKS: Final = (
    Check(
        id="nvlink.links",
        subject=Subject.GPU,
        signal="NVLink ports that are active (NVML field 165), against the number that the product has, or the most "
        "that were ever seen active on this card",
        critical_when="fewer ports are active than the product has; on products without a figure, than the most that "
        "were ever active",
        reason="NvlinkLinksDown",
        summary="NVLink ports of the GPU are down.",
        remedy="run nvidia-smi nvlink -s, read the fabric manager's log, drain the node and reset its GPUs",
        runbook="Run `nvidia-smi nvlink -s -i INDEX` and `nvidia-smi nvlink -e -i INDEX`, then `dmesg | grep -iE "
        "'xid.*(74|14[4-9]|150)|sxid'` and `journalctl -u nvidia-fabricmanager`. Links do not come back by themselves: "
        "drain the node, then reset all its GPUs together or reboot. With the same links down again the board or the "
        "baseboard needs a visit. Peer to peer status and fabric health stay good with half of the links gone: only "
        "the count shows it. Where a product has fewer by design, set `critical` in a HiSparseNodePolicy.",
        source="18 links on H200 and H100 SXM (measured; NVIDIA data sheets), on B200 (the NV18 of topologies in vllm "
        "issue 16336) and on H20 (900 GB/s of NVLink 4 in published specifications), 12 on A100 SXM (leptonai/gpud "
        "test data) and on H100 NVL in Azure NCv5 (azurehpc-health-checks issue 162)",
        unit="count",
        profiles=MappingProxyType(
            {
                "h200": _SXM_LINKS,
                "h100": _SXM_LINKS,
                "h20": _SXM_LINKS,
                "b200": _SXM_LINKS,
                "a100-80": _AMPERE_LINKS,
                "a100-40": _AMPERE_LINKS,
                "h100-nvl": _AMPERE_LINKS,
            }
        ),
        enter_polls=3,
        leave_polls=20,
        boot_grace_s=300,
        condition=NodeCondition.LINK,
        decides=True,
        taints=True,
        cost=_TENSOR_PARALLEL,
    ),
    Check(
        id="nvlink.capacity",
        subject=Subject.GPU,
        signal="capacity of the active links, both directions together (NVML field 164), against all links at full "
        "speed; never a traffic counter",
        reason="NvlinkCapacityLow",
        summary="The GPU's links can carry less than they should.",
        remedy="run nvidia-smi nvlink -s and see nvlink.links",
        runbook="Run `nvidia-smi nvlink -s -i INDEX`: each active link of an H200 shows 26.562 GB/s per direction, 18 "
        "of them 956 GB/s both ways. Links that are missing are nvlink.links; links that are slower have trained "
        "badly: drain the node and reset its GPUs. DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL is traffic, 0 on an idle GPU: "
        "no measure of capacity.",
        source="26,562 MB/s per link and direction on H200 SXM (measured), 25,000 on A100 SXM (leptonai/gpud test "
        "data); limits chosen",
        unit="ratio",
        threshold=Threshold(warn="1", critical="0.9", rising=False),
        enter_polls=3,
        leave_polls=20,
        boot_grace_s=300,
        condition=NodeCondition.LINK,
        cost=_TENSOR_PARALLEL,
    ),
    Check(
        id="nvlink.errors",
        subject=Subject.GPU,
        signal="CRC errors of the worst link per minute (NVML field 163, over 5 minutes), and recoveries of one link "
        "in 10 minutes (field 162)",
        warn_when="CRC errors of one port per minute: {limit}",
        critical_when="one port recovered twice or more in 10 minutes",
        reason="NvlinkErrors",
        summary="A link repeats data or retrains.",
        remedy="run nvidia-smi nvlink -e twice and plan a reset if the figures still rise",
        runbook="Run `nvidia-smi nvlink -e -i INDEX` twice, a minute apart. A few CRC errors are normal; a link that "
        "recovers again and again goes down next. Drain the node when it suits and reset its GPUs.",
        source="limits chosen; counters of NVML on Hopper",
        unit="count",
        threshold=Threshold(warn="100"),
        enter_polls=1,
        leave_polls=20,
        boot_grace_s=300,
        condition=NodeCondition.LINK,
        cost="Data is sent again: collective operations of tensor parallel groups take longer.",
    ),
    Check(
        id="nvlink.p2p",
        subject=Subject.GPU,
        signal="NVML's peer to peer status over NVLink for each other GPU",
        critical_when="a peer is not reachable while the ports of both GPUs are up",
        reason="NvlinkPeerUnreachable",
        summary="Links are up and another GPU is not reachable over them.",
        remedy="run nvidia-smi topo -p2p n, read the fabric manager's log and restart it on a drained node",
        runbook="Run `nvidia-smi topo -p2p n` and `nvidia-smi topo -m`. All GPUs of an SXM board see each other. If "
        "the links are up and a pair is not OK, the fabric manager has not set the routes: `systemctl status "
        "nvidia-fabricmanager`, and restart it on a drained node.",
        source="NVML GetP2PStatus; the reverse of a lost link (leptonai/gpud)",
        enter_polls=3,
        leave_polls=20,
        boot_grace_s=300,
        condition=NodeCondition.LINK,
        taints=True,
        cost="NCCL falls back to PCIe for this pair, or the engine does not start.",
    ),
    Check(
        id="fabric.state",
        subject=Subject.GPU,
        signal="NVML's fabric state and status",
        warn_when="not completed for 2 minutes, in the first 5 minutes after boot",
        critical_when="not completed 5 minutes after boot, or completed with another status than success",
        reason="FabricNotReady",
        summary="The NVLink fabric is not set up.",
        remedy="run systemctl status nvidia-fabricmanager and check that its version is the driver's",
        runbook="Run `nvidia-smi -q -i INDEX | grep -A4 Fabric` and `systemctl status nvidia-fabricmanager`. In "
        "Progress for minutes means that the fabric manager is down or has another version than the driver "
        "(`nv-fabricmanager --version`); CUDA programs fail with error 802 meanwhile.",
        source="NVML GetGpuFabricInfo; state 3 and status 0 are healthy (measured); 2 and 5 minutes chosen",
        enter_polls=3,
        leave_polls=5,
        condition=NodeCondition.LINK,
        taints=True,
        cost="No CUDA program starts on the node (error 802).",
    ),
    Check(
        id="fabric.health",
        subject=Subject.GPU,
        signal="NVML's fabric health mask, decoded: of two bits 1 is the fault and 2 is healthy",
        warn_when="route recovery, or limited capacity as the only word",
        critical_when="degraded bandwidth, an unhealthy route, an access timeout, a wrong configuration, or unhealthy "
        "as the only word",
        reason="FabricDegraded",
        summary="The fabric reports less bandwidth, a bad route or a wrong configuration.",
        remedy="run nvidia-smi -q and read the Fabric section, then the fabric manager's log",
        runbook="Run `nvidia-smi -q -i INDEX | grep -A12 Fabric`. Degraded bandwidth: see nvlink.links. Route recovery "
        "ends by itself. An unhealthy route, an access timeout or a wrong configuration needs the fabric manager's "
        "log and, on a drained node, its restart. A healthy mask is 0x1AA and not 0.",
        source="nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*; 0x1AA and 0x1A9 seen in a simulated NVML, N/A on a single "
        "Hopper node (measured)",
        enter_polls=3,
        leave_polls=20,
        condition=NodeCondition.LINK,
        cost=_TENSOR_PARALLEL,
    ),
    Check(
        id="pcie.link",
        subject=Subject.GPU,
        signal="PCIe generation and lanes, against the most that card and slot do; on SXM always, on cards under load "
        "(utilisation above 20 %), because idle cards lower the generation to save power",
        warn_when="the generation is below the highest",
        critical_when="lanes are missing, or the generation is 3 or lower on a card and slot that do more",
        reason="PcieDowntrained",
        summary="The link to the host has trained slower than it can.",
        remedy="run nvidia-smi -q -d PCIE, drain the node and reboot it; reseat the card if it comes back",
        runbook="Run `nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,"
        "pcie.link.width.max --format=csv` and `lspci -vv -s ADDRESS | grep LnkSta`. Drain the node and reboot it: the "
        "link trains again. If it comes back slow, the card, riser or switch needs a visit.",
        source="H200 SXM stays at gen5 when idle (measured); other cards fall to gen1; limits chosen",
        enter_polls=3,
        leave_polls=10,
        boot_grace_s=60,
        condition=NodeCondition.LINK,
        taints=True,
        cost=_HALF_SPEED,
    ),
    Check(
        id="pcie.errors",
        subject=Subject.GPU,
        signal="PCIe replays per minute over 10 minutes, and non-fatal or fatal errors in 10 minutes; not in the first "
        "10 minutes after boot, when a healthy card counts hundreds",
        warn_when="replays per minute: {limit}",
        critical_when="any non-fatal or fatal error in 10 minutes",
        reason="PcieErrors",
        summary="The link to the host repeats packets or fails.",
        remedy="run nvidia-smi -q and compare the replay counter over a minute, then plan a visit",
        runbook="Run `nvidia-smi -q -i INDEX | grep -iE 'replay|PCIe'` twice, a minute apart, and `dmesg | grep -i "
        "aer`. Replays that rise all the time point to the riser or the cable. A fatal error is followed by a lost "
        "GPU.",
        source="replay 2, bad TLP 15 to 74 and recoveries above 600 right after boot on healthy H200 (measured); "
        "limits chosen",
        unit="count",
        threshold=Threshold(warn="10"),
        enter_polls=1,
        leave_polls=20,
        boot_grace_s=600,
        condition=NodeCondition.LINK,
        cost="Host reads of the tier are sent again and take longer.",
    ),
)

_HEAT: Final = (
    Check(
        id="thermal.margin",
        subject=Subject.GPU,
        signal="degrees that are left until the GPU throttles",
        reason="ThermalMarginLow",
        summary="The GPU is close to its highest working temperature.",
        remedy="check fans, inlet air and neighbours with ipmitool sdr type fan; a policy may lower the power limit",
        runbook="Run `nvidia-smi -q -d TEMPERATURE -i INDEX` and, on the host, `ipmitool sdr type fan` and `ipmitool "
        "sdr type temperature`. An H200 works up to 87 C: what counts is the margin, not 85 C. One hot GPU of eight: "
        "its heat sink or fan; all of them: the air of the room. A HiSparseNodePolicy may let the agent take 10 % off "
        "the power limit until the GPU is cool for ten minutes.",
        source="NVML GetMarginTemperature: 33 C is margin 54, 52 C is 35 on an H200 (measured), so 0 is 87 C; limits "
        "chosen",
        unit="celsius",
        threshold=Threshold(warn="10", critical="2", rising=False, inclusive=True, leave="15"),
        enter_polls=20,
        critical_enter_polls=4,
        leave_polls=40,
        condition=NodeCondition.GPU,
        decides=True,
        verbs=(Verb.POWER_CAP,),
        cost=_SLOWER_CLOCK,
    ),
    Check(
        id="thermal.hbm",
        subject=Subject.GPU,
        signal="temperature of the GPU's memory (NVML field 82); the card's own limit counts where it is lower",
        reason="MemoryHot",
        summary="The GPU's memory is close to its highest temperature.",
        remedy="check fans and inlet air with ipmitool sdr type fan; a policy may lower the power limit",
        runbook="Run `nvidia-smi -q -d TEMPERATURE -i INDEX` and `ipmitool sdr type fan`. Memory heat follows memory "
        "traffic: long decode at high concurrency is the hardest load.",
        source="limit 95 C on an H200, 37 C when idle (measured); 90 C chosen",
        unit="celsius",
        threshold=Threshold(warn="90", critical="95", inclusive=True),
        enter_polls=20,
        leave_polls=40,
        condition=NodeCondition.GPU,
        verbs=(Verb.POWER_CAP,),
        cost=_SLOWER_CLOCK,
    ),
    Check(
        id="throttle.hw_thermal",
        subject=Subject.GPU,
        signal="share of the last 5 minutes in which the hardware slowed the GPU down because of heat",
        reason="HwThermalThrottle",
        summary="The GPU is so hot that the hardware slows it down.",
        remedy="check fans and inlet air with ipmitool sdr type fan; a policy may lower the power limit",
        runbook="Run `nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i INDEX` and `ipmitool sdr type fan`. A lower power "
        "limit costs less than this: the hardware halves the clock and lets go again.",
        source="NVML fields 270, 252 in older drivers; limits chosen",
        unit="ratio",
        threshold=Threshold(warn="0.01", critical="0.1"),
        enter_polls=2,
        leave_polls=10,
        condition=NodeCondition.GPU,
        verbs=(Verb.POWER_CAP,),
        cost=_SLOWER_CLOCK,
    ),
    Check(
        id="throttle.sw_thermal",
        subject=Subject.GPU,
        signal="share of the last 5 minutes in which the driver lowered clocks because of heat",
        reason="SwThermalThrottle",
        summary="The driver lowers clocks to stay under the highest temperature.",
        remedy="check fans and inlet air with ipmitool sdr type fan",
        runbook="Run `nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i INDEX` and `ipmitool sdr type fan`.",
        source="NVML fields 269, 251 or 75 in older drivers; limits chosen",
        unit="ratio",
        threshold=Threshold(warn="0.05", critical="0.3"),
        enter_polls=3,
        leave_polls=10,
        condition=NodeCondition.GPU,
        cost=_SLOWER_CLOCK,
    ),
    Check(
        id="throttle.power_brake",
        subject=Subject.GPU,
        signal="time in which the power brake slowed the GPU down: any in three polls, or a share of the last 5 "
        "minutes",
        warn_when="any time since the reading before",
        reason="PowerBrake",
        summary="Something outside the GPU pulls its power brake.",
        remedy="look at the power supplies and the rack's power shelf with ipmitool sdr type 'Power Supply'",
        runbook="Run `nvidia-smi -q -d PERFORMANCE -i INDEX` and `ipmitool sdr type 'Power Supply'`; ask who runs the "
        "power shelf. The signal comes from the board: a lost supply, a feed at its limit, a BMC policy.",
        source="NVML fields 271, 253 in older drivers; limits chosen",
        unit="ratio",
        threshold=Threshold(warn="0", critical="0.1"),
        enter_polls=3,
        leave_polls=10,
        condition=NodeCondition.GPU,
        cost=_SLOWER_CLOCK,
    ),
    Check(
        id="throttle.sw_power",
        subject=Subject.GPU,
        signal="share of the last 5 minutes in which the driver kept the GPU at its power limit",
        reason="SwPowerCap",
        summary="Information: the GPU works at its power limit. Never a fault.",
        remedy="nothing is to be done",
        runbook="A full load sits at the power limit for its whole length: a matrix loop on an H200 held 690 W and "
        "reason 0x4 from start to end. Only a limit below the default is worth a look: power.oob.",
        source="690 to 693 W with reason 0x4 for the whole length of a load (measured)",
        unit="ratio",
    ),
    Check(
        id="power.oob",
        subject=Subject.GPU,
        signal="the power limit in force against the one that was asked for, and the one that is set against the "
        "card's default; a cap of this project's own is the one to compare with",
        reason="PowerCappedOutOfBand",
        summary="Something other than this project limits the GPU's power.",
        remedy="run nvidia-smi -q -d POWER; look at the BMC and the power shelf, or set the limit back with "
        "nvidia-smi -pl",
        runbook="Run `nvidia-smi -q -d POWER -i INDEX`. Current below Requested: the BMC or the power shelf caps the "
        "card. Requested below Default: somebody ran `nvidia-smi -pl`; set it back with `nvidia-smi -i INDEX -pl "
        "DEFAULT` if nobody needs it.",
        source="500 of 700 W enforced by a BMC (stackhpc/ansible-slurm-appliance pull request 975); 80 % chosen",
        unit="ratio",
        threshold=Threshold(warn="1", critical="0.8", rising=False),
        enter_polls=3,
        leave_polls=5,
        condition=NodeCondition.GPU,
        cost=_SLOWER_CLOCK,
    ),
    Check(
        id="power.persistence",
        subject=Subject.GPU,
        signal="persistence mode",
        warn_when="persistence mode is off",
        reason="PersistenceOff",
        summary="The driver unloads when nobody uses the GPU, and forgets its power limit.",
        remedy="run nvidia-smi -pm 1, or enable nvidia-persistenced",
        runbook="Run `nvidia-smi -q -i INDEX | grep -i persistence`, then `systemctl enable --now "
        "nvidia-persistenced`. Without it the driver loads anew for each program, and settings such as a power limit "
        "are lost.",
        source="NVIDIA driver persistence documentation",
        pace=Pace.CONFIG,
        enter_polls=1,
        leave_polls=1,
        cost="Engine starts take seconds longer.",
    ),
)

_DRIVER: Final = (
    Check(
        id="driver.floor",
        subject=Subject.HOST,
        signal="version of the driver and of the newest CUDA that it takes: at least 535.129.03 and 12.3, better 580",
        warn_when="the driver is below 580",
        critical_when="the driver is below 535.129.03, or takes no CUDA 12.3",
        reason="DriverOld",
        summary="The driver is older than the signals that are read, or than the engine needs.",
        remedy="update the driver to release 580 or newer",
        runbook="Run `nvidia-smi | head -4`. Below 580 the throttle times and the recovery action are missing and "
        "their checks read Unsupported.",
        source="recovery action came with NVML 12.8, throttle times with 12.9 (history of nvml.h)",
        pace=Pace.CONFIG,
        enter_polls=1,
        leave_polls=1,
        cost="None by itself; several checks are blind.",
    ),
    Check(
        id="driver.rules",
        subject=Subject.HOST,
        signal="known faults of driver and kernel with large pinned pools",
        warn_when="a rule applies: kernel 6.11 to 6.13, or driver 580 and newer with a pool of 512 GiB or more",
        reason="KnownFault",
        summary="This driver or kernel is known to fail with a pool of this kind.",
        remedy="see which rule applies and change the kernel, or split the pool",
        runbook="Run `uname -r` and `nvidia-smi | head -4`. Driver 580 and newer refuse to register one region of 512 "
        "GiB or more: use a smaller pool per rank. Kernels 6.11 to 6.13 lose memory when a long-term pin fails, until "
        "the next boot: use another kernel.",
        source="vllm issue 51080 (512 GiB); NV-Kernels pull request 110 and pytorch issue 139884 (kernels 6.11 to "
        "6.13)",
        pace=Pace.CONFIG,
        enter_polls=1,
        leave_polls=1,
        condition=NodeCondition.HOST_MEMORY,
        cost="The engine may fail while it pins its pool; memory may stay lost until the next boot.",
    ),
    Check(
        id="rdma.path",
        subject=Subject.HOST,
        signal="where an engine declares an RDMA connector: DMA-BUF (open kernel module, kernel 5.12 or newer) or "
        "nvidia-peermem registered with the RDMA stack",
        warn_when="neither DMA-BUF nor a registered nvidia-peermem is there",
        reason="NoGpuDirectPath",
        summary="NICs cannot reach GPU memory directly.",
        remedy="run modprobe nvidia-peermem, or move to the open kernel module, where DMA-BUF needs no peermem",
        runbook="Run `cat /proc/driver/nvidia/version` (Open Kernel Module?), `uname -r` and `ls "
        "/sys/kernel/mm/memory_peers/` (nv_mem?). Open module and kernel 5.12 or newer: DMA-BUF works, nothing to do. "
        "Closed module: `modprobe nvidia-peermem`. Loaded is not registered: without an RDMA stack that exports "
        "ib_register_peer_memory_client (MLNX_OFED, DOCA) it answers Invalid argument. KV offload to the memory of "
        "the same host uses neither.",
        source="NVIDIA GPUDirect RDMA documentation; loaded and not registered: nccl issue 1939",
        pace=Pace.CONFIG,
        enter_polls=3,
        leave_polls=3,
        condition=NodeCondition.LINK,
        decides=True,
        cost="KV transfer between nodes goes through host memory.",
    ),
    Check(
        id="rdma.nic",
        subject=Subject.NIC,
        signal="state and rate of RDMA ports, where a connector is declared; against what the port has shown before",
        warn_when="the port is slower than it was",
        critical_when="the port is down and was up before",
        reason="NicDegraded",
        summary="An RDMA port is down or slower than it was.",
        remedy="run ibstat, check cable and switch port",
        runbook="Run `ibstat NAME` and `cat /sys/class/infiniband/NAME/ports/PORT/counters/link_downed`. Check cable "
        "and switch port. A port that was never up since the agent runs is taken for unused.",
        source="Linux sysfs of RDMA devices; limits chosen",
        enter_polls=3,
        leave_polls=10,
        boot_grace_s=300,
        condition=NodeCondition.LINK,
        cost="KV transfer between nodes is slower, or stops.",
    ),
)

_MEMORY: Final = (
    Check(
        id="host.mem.available",
        subject=Subject.HOST,
        signal="MemAvailable: below the lesser of 50 GiB and 10 % of the total is a warning, below the lesser of 16 "
        "GiB and 3 % critical",
        warn_when="{limit}, or below 10 % of the total where that is less",
        critical_when="{limit}, or below 3 % of the total where that is less",
        reason="HostMemoryLow",
        summary="The host runs out of memory that programs can take.",
        remedy="find what holds it with the causes named here and smem -tk; lower the host pool rather than enlarge "
        "swap",
        runbook="Run `grep -E 'MemAvailable|Shmem|AnonPages' /proc/meminfo`, `grep nr_foll_pin /proc/vmstat`, `cat "
        "/proc/pressure/memory` and `numastat -m`. Pinned bytes are the offload pool and cannot be swapped or "
        "reclaimed; a shared pool counts once per rank there. If the pool is the cause, lower "
        "spec.kvTier.hostPool: more swap does not help pinned memory.",
        source="MemAvailable of Linux does not count pinned shared memory as available; limits chosen",
        pace=Pace.HOST,
        unit="bytes",
        threshold=Threshold(warn=str(50 * 1024**3), critical=str(16 * 1024**3), rising=False),
        enter_polls=3,
        leave_polls=12,
        condition=NodeCondition.HOST_MEMORY,
        decides=True,
        cost="The next engine may not get its host pool; the kernel may end one that runs.",
    ),
    Check(
        id="host.mem.fit",
        subject=Subject.POD,
        signal="the host pool that an engine pod declares and does not hold yet, against its memory limit and against "
        "MemAvailable, together with the other pods that still fill theirs",
        warn_when="less than 10 % of what is to come would be left",
        critical_when="what is to come is more than is available, or the pool is above the pod's memory limit",
        reason="PoolWontFit",
        summary="The host pool of an engine does not fit.",
        remedy="lower spec.kvTier.hostPool, raise spec.resources.memory, or move the pod to a larger node",
        runbook="Run `kubectl get hsi -A` and compare the pool with MemAvailable of the node. The engine refuses to "
        "start with 'pinned host pool needs ... GiB but only ... is available', or is ended by the kernel while it "
        "fills the pool. Lower spec.kvTier.hostPool, or free the node.",
        source="vLLM 0.33 compares the pool with available memory and refuses (measured); 10 % chosen",
        pace=Pace.HOST,
        unit="bytes",
        enter_polls=1,
        leave_polls=3,
        condition=NodeCondition.HOST_MEMORY,
        cost="The engine does not start, or is ended while it starts.",
    ),
    Check(
        id="host.mem.psi",
        subject=Subject.HOST,
        signal="memory pressure of the node and of each engine pod: share of the last minute in which some tasks "
        "waited (warning) or all of them (critical)",
        warn_when="share in which some programs waited: {limit}",
        critical_when="share in which all programs waited: {limit}",
        reason="MemoryPressure",
        summary="Programs wait for memory.",
        remedy="find what takes memory with smem -tk and lower the host pool; a policy may set vm.swappiness",
        runbook="Run `cat /proc/pressure/memory` and `vmstat 1 10`. Pressure with much pinned memory means that "
        "everything else shares what is left: lower spec.kvTier.hostPool. A policy may set vm.swappiness to 10.",
        source="Linux pressure stall information, avg60; limits chosen",
        pace=Pace.HOST,
        unit="ratio",
        threshold=Threshold(warn="0.1", critical="0.05", apart=True),
        enter_polls=2,
        leave_polls=6,
        condition=NodeCondition.HOST_MEMORY,
        verbs=(Verb.SYSCTL,),
        cost="Every request on the node waits with the programs that wait.",
    ),
    Check(
        id="host.mem.numa",
        subject=Subject.NUMA,
        signal="memory of a NUMA node next to a GPU that is free or file cache; and whether another node has four "
        "times as much",
        warn_when="{limit}, or another node has four times as much",
        reason="NumaExhausted",
        summary="The memory next to a GPU is used up.",
        remedy="run numastat -m and bind the engine to the node of its GPU, or lower its host pool",
        runbook="Run `numastat -m`, `nvidia-smi topo -m` and `cat /sys/bus/pci/devices/ADDRESS/numa_node`. A pool on "
        "the far node is read over the link between the sockets. Set the kubelet's topology manager to "
        "single-numa-node, or lower spec.kvTier.hostPool.",
        source="limits chosen; the memory of the nodes must add up to the total, else it is not believed (a virtual "
        "machine reported 4.5 of 132 GB, measured)",
        pace=Pace.HOST,
        unit="bytes",
        threshold=Threshold(warn=str(16 * 1024**3), critical=str(4 * 1024**3), rising=False),
        enter_polls=3,
        leave_polls=12,
        condition=NodeCondition.HOST_MEMORY,
        cost="Part of the pool lies on the far socket: its reads are slower.",
    ),
    Check(
        id="host.mem.pinned",
        subject=Subject.NUMA,
        signal="share of a node's memory under long-term pins (nr_foll_pin_acquired less nr_foll_pin_released), and at "
        "most what is neither free nor file cache: a shared pool counts once per rank",
        reason="PinnedHigh",
        summary="Nearly all memory of a node is pinned and cannot be reclaimed.",
        remedy="lower spec.kvTier.hostPool of the engines on this node",
        runbook="Run `grep nr_foll_pin /proc/vmstat /sys/devices/system/node/node*/vmstat` and multiply by the page "
        "size. Mlocked and Unevictable do not show pins of CUDA. Divide by the ranks of a shared pool.",
        source="8 GiB page-locked three ways moves these counters and no other (measured); limits chosen",
        pace=Pace.HOST,
        unit="ratio",
        threshold=Threshold(warn="0.85", critical="0.95"),
        enter_polls=3,
        leave_polls=12,
        condition=NodeCondition.HOST_MEMORY,
        cost="Everything else on the node shares what is left.",
    ),
    Check(
        id="host.swap",
        subject=Subject.HOST,
        signal="pages swapped in and out per second, over 2 minutes",
        reason="Swapping",
        summary="The host swaps.",
        remedy="lower the host pool or move other programs away; a policy may set vm.swappiness",
        runbook="Run `vmstat 1 10` (si, so) and `grep -E 'pswp|pgmajfault' /proc/vmstat`. Pinned pages never swap: "
        "the rest of the host does because the pool leaves it too little. Lower spec.kvTier.hostPool; do not enlarge "
        "swap. A policy may set vm.swappiness to 10.",
        source="limits chosen",
        pace=Pace.HOST,
        unit="count",
        threshold=Threshold(warn="100", critical="5000"),
        enter_polls=2,
        leave_polls=6,
        condition=NodeCondition.HOST_MEMORY,
        verbs=(Verb.SYSCTL,),
        cost="Schedulers and tokenisers of the engines wait for the disk.",
    ),
)

_PODS: Final = (
    Check(
        id="host.pool.unpinned",
        subject=Subject.POD,
        signal="an engine pod with 8 GiB or more of shared memory on a node whose pins are below 90 % of all such "
        "pools, for 10 minutes; critical where swap is on",
        warn_when="for 10 minutes, where swap is off",
        critical_when="for 10 minutes, where swap is on",
        reason="PoolUnpinned",
        summary="An offload pool is not pinned.",
        remedy="look for a failed cudaHostRegister in the engine's log and restart the pod",
        runbook="Run `kubectl logs POD | grep -iE 'cudaHostRegister|pin'` and `grep nr_foll_pin /proc/vmstat`. A pool "
        "that is not pinned is copied through a bounce buffer at a fraction of the speed and can be swapped. Restart "
        "the pod; if it comes back unpinned see driver.rules.",
        source="pinned pages show in nr_foll_pin only (measured); limits chosen",
        unit="bytes",
        enter_polls=3,
        leave_polls=5,
        condition=NodeCondition.HOST_MEMORY,
        cost="Host reads of the tier run at a fraction of the speed.",
    ),
    Check(
        id="host.pool.orphan",
        subject=Subject.POD,
        signal="offload files in a pod's /dev/shm that no process has had open for 10 minutes; critical above 10 % of "
        "the host's memory",
        warn_when="a file without a process for 10 minutes",
        critical_when="files without a process hold more than 10 % of the host's memory",
        reason="PoolOrphaned",
        summary="An engine that was ended has left its pool behind.",
        remedy="delete the pod, or in it check with fuser FILE and run rm /dev/shm/vllm_offload_*",
        runbook="In the pod: `ls -l /dev/shm` and `fuser -v /dev/shm/vllm_offload_*`. A file without a process is left "
        "over from an engine that was killed; it counts to the pod's limit and survives a restart of the container. "
        "`rm` it, or delete the pod.",
        source="files are left after SIGKILL (vLLM pull request 51317); limits chosen",
        unit="bytes",
        enter_polls=3,
        leave_polls=3,
        condition=NodeCondition.HOST_MEMORY,
        cost="The next engine in this pod has that much less memory.",
    ),
    Check(
        id="host.pool.leak",
        subject=Subject.HOST,
        signal="pinned bytes while no process uses any GPU and no engine pod runs: above 4 GiB, critical above 10 % of "
        "the host's memory",
        critical_when="above 10 % of the host's memory",
        reason="PinsLeaked",
        summary="Memory stays pinned although nobody uses it.",
        remedy="drain the node and reboot it",
        runbook="Run `nvidia-smi --query-compute-apps=pid --format=csv` and `grep nr_foll_pin /proc/vmstat`. With "
        "kernels 6.11 to 6.13 memory of a failed pin stays lost until the next boot. RDMA programs pin as well: `ls "
        "/sys/class/infiniband` and look for their processes first.",
        source="NV-Kernels pull request 110, llama.cpp issue 9988; limits chosen",
        unit="bytes",
        threshold=Threshold(warn=str(4 * 1024**3)),
        enter_polls=3,
        leave_polls=10,
        condition=NodeCondition.HOST_MEMORY,
        cost="The next engine has that much less memory.",
    ),
    Check(
        id="host.memcg",
        subject=Subject.POD,
        signal="events of a pod's memory cgroup: oom_kill rises (critical), max rises (warning)",
        warn_when="max rises",
        critical_when="oom_kill rises",
        reason="PodMemoryLimit",
        summary="A pod has reached its memory limit.",
        remedy="raise spec.resources.memory or lower spec.kvTier.hostPool",
        runbook="Run `kubectl describe pod POD` (OOMKilled?) and `dmesg | grep -A3 oom-kill`; shmem-rss in that line "
        "is the pool. Raise spec.resources.memory or lower spec.kvTier.hostPool. max alone may be file cache that is "
        "given back.",
        source="a worker ended with 143 GB of shmem-rss (vllm issue 57469)",
        unit="count",
        enter_polls=1,
        leave_polls=_POLLS_PER_HOUR,
        condition=NodeCondition.HOST_MEMORY,
        cost="A process of the engine was ended: its requests and its KV pool are gone.",
    ),
)

_SETTINGS: Final = (
    Check(
        id="host.sysctl",
        subject=Subject.HOST,
        signal="vm.swappiness at most 10 where swap is on, vm.zone_reclaim_mode 0, vm.overcommit_memory not 2; "
        "kernel.numa_balancing is told, not judged",
        warn_when="a setting is another one",
        reason="SysctlOffProfile",
        summary="A kernel setting does not suit a host with a large pinned pool.",
        remedy="set it with sysctl -w and in /etc/sysctl.d, or on the node pool's configuration",
        runbook="Run `sysctl vm.swappiness vm.zone_reclaim_mode vm.overcommit_memory kernel.numa_balancing`. "
        "zone_reclaim_mode makes a program wait for one NUMA node while another is free. kernel.numa_balancing 1 has "
        "cost stalls of 16 to 31 ms in one report and 20 % when switched off in another: measure before you change it.",
        source="DeepEP issue 624 and tuned pull request 283 (numa_balancing); values chosen",
        pace=Pace.CONFIG,
        enter_polls=1,
        leave_polls=1,
    ),
    Check(
        id="host.thp",
        subject=Subject.HOST,
        signal="transparent huge pages: always or madvise",
        warn_when="they are set to never",
        reason="HugePagesOff",
        summary="Huge pages are off: a pool is filled and pinned in pages of 4 KiB.",
        remedy="run echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        runbook="Run `cat /sys/kernel/mm/transparent_hugepage/enabled "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled`. With never, each GiB of a pool is 262,144 page faults "
        "instead of 512.",
        source="1 GiB / 4 KiB against 1 GiB / 2 MiB; value chosen",
        pace=Pace.CONFIG,
        enter_polls=1,
        leave_polls=1,
        cost="Engine starts take longer.",
    ),
    Check(
        id="host.cpufreq",
        subject=Subject.HOST,
        signal="governor performance; where the driver chooses frequencies itself (intel_pstate, amd-pstate-epp), the "
        "energy preference performance",
        warn_when="a CPU has another governor or energy preference",
        reason="CpuFrequencyOffProfile",
        summary="CPUs may run below their highest frequency.",
        remedy="run cpupower frequency-set -g performance; a policy may set it",
        runbook="Run `cpupower frequency-info` and `cat "
        "/sys/devices/system/cpu/cpu0/cpufreq/{scaling_driver,scaling_governor,energy_performance_preference}`. With "
        "intel_pstate the governor powersave is dynamic, and the energy preference is what counts. Virtual machines "
        "have no cpufreq.",
        source="Linux documentation of intel_pstate and amd-pstate; values chosen",
        pace=Pace.CONFIG,
        enter_polls=1,
        leave_polls=1,
        verbs=(Verb.CPUFREQ,),
        cost="Scheduling and tokenising take longer between steps.",
    ),
)

_WATCHING: Final = (
    Check(
        id="nvml.latency",
        subject=Subject.HOST,
        signal="time of a whole NVML poll: this one, and from 20 polls in 5 minutes on the 95th percentile",
        reason="NvmlSlow",
        summary="NVML answers slowly.",
        remedy="run time nvidia-smi; look for Xid 119 and for an engine that pins its pool",
        runbook="Run `time nvidia-smi` and `dmesg | grep 'Xid.*119'`. While an engine pins hundreds of GiB every NVML "
        "call of the node stalls: that is a pin window and not a fault. A stuck GSP blocks each call for about 6 s "
        "and logs Xid 119.",
        source="pinning stalls NVML and DCGM of the whole node (TensorRT-LLM issue 17429); 1 s chosen",
        unit="seconds",
        threshold=Threshold(warn="1"),
        enter_polls=3,
        leave_polls=3,
        pin_grace=True,
    ),
    Check(
        id="pin.window",
        subject=Subject.HOST,
        signal="pinned bytes or shared memory rise by more than 1 GiB/s",
        reason="Pinning",
        summary="Information: an engine fills and pins its pool. Never a fault.",
        remedy="nothing is to be done",
        runbook="`watch grep nr_foll_pin_acquired /proc/vmstat` shows the progress. Filling a pool takes about 0.4 s "
        "per GiB. Until it ends NVML and dcgm-exporter may not answer; findings about them are withheld.",
        source="0.41 s per GiB for a private pool (measured)",
        pace=Pace.HOST,
        unit="bytes",
    ),
    Check(
        id="exporter.fresh",
        subject=Subject.HOST,
        signal="time for which the energy counters of dcgm-exporter have stood still",
        reason="ExporterStale",
        summary="dcgm-exporter answers with old figures.",
        remedy="delete the dcgm-exporter pod of this node",
        runbook="Run `kubectl get pods -A -o wide --field-selector spec.nodeName=NODE | grep dcgm` and scrape it "
        "twice, a minute apart: DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION of an idle H200 grows by 4.6 kJ a minute. "
        "/health stays OK over stale figures. Delete the pod.",
        source="stale figures behind a good /health (gpu-monitoring-tools issue 188); 76 W idle (measured); 2 minutes "
        "chosen",
        unit="seconds",
        threshold=Threshold(warn="120", inclusive=True),
        enter_polls=2,
        leave_polls=2,
        pin_grace=True,
    ),
)

CHECKS: Final[tuple[Check, ...]] = (
    *_INVENTORY,
    *_LINKS,
    *_HEAT,
    *_DRIVER,
    *_MEMORY,
    *_PODS,
    *_SETTINGS,
    *_WATCHING,
)
"""Every check, in the order in which people read them."""

BY_ID: Final[Mapping[str, Check]] = MappingProxyType({check.id: check for check in CHECKS})

DECIDING: Final = tuple(check.id for check in CHECKS if check.decides)
"""Checks without which there is no answer: where one of them is Unknown, nobody can say that the node is well."""
