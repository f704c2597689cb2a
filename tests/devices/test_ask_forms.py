"""Pods as people have them, unedited: the forms of HAMi's examples and of charts that know HAMi's resources."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from partage.devices.ask import read_ask
from partage.model import ShareClass

MI = 1 << 20
GI = 1 << 30

#: name -> pod, and for each container with shares: backend, cards, memory, percent, cores, class.
FORMS: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "HAMi: memory of two cards": (
        """
        containers:
          - name: ubuntu-container
            resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 3000}}
        """,
        [("nvidia", 2, 3000 * MI, None, 0, ShareClass.BURST)],
    ),
    "HAMi: memory and cores": (
        """
        containers:
          - name: ubuntu-container
            command: [bash, -c, sleep 86400]
            resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 10240, nvidia.com/gpucores: 60}}
        """,
        [("nvidia", 1, 10240 * MI, None, 600, ShareClass.FIXED)],
    ),
    "HAMi: a fraction of the memory": (
        """
        containers:
          - name: ubuntu-container
            resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem-percentage: 50, nvidia.com/gpucores: 30}}
        """,
        [("nvidia", 2, None, 500, 300, ShareClass.FIXED)],
    ),
    "HAMi: exclusive cards": (
        """
        containers:
          - name: ubuntu-container
            resources: {limits: {nvidia.com/gpu: 2}}
        """,
        [("nvidia", 2, None, None, 1000, ShareClass.FIXED)],
    ),
    "HAMi: one of two containers": (
        """
        containers:
          - {name: web, resources: {limits: {cpu: 500m, memory: 1Gi}}}
          - {name: gpu, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 2000}}}
        """,
        [("nvidia", 1, 2000 * MI, None, 0, ShareClass.BURST)],
    ),
    "HAMi: a low priority": (
        """
        containers:
          - name: batch
            resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000, nvidia.com/priority: 1}}
        """,
        [("nvidia", 1, 3000 * MI, None, 0, ShareClass.BEST_EFFORT)],
    ),
    "HAMi: Kunlun slices": (
        """
        containers:
          - name: xpu
            resources: {limits: {kunlunxin.com/vxpu: 1, kunlunxin.com/vxpu-memory: 24576}}
        """,
        [("kunlun", 1, 24576 * MI, None, 250, ShareClass.FIXED)],
    ),
    "HAMi: MetaX shares": (
        """
        containers:
          - name: metax
            resources: {limits: {metax-tech.com/sgpu: 1, metax-tech.com/vcore: 60, metax-tech.com/vmemory: 4}}
        """,
        [("metax", 1, 4 * GI, None, 0, ShareClass.BEST_EFFORT)],
    ),
    "HAMi: Neuron devices": (
        "containers: [{name: neuron, resources: {limits: {cpu: '4', aws.amazon.com/neuron: 4}}}]",
        [("neuron", 4, None, None, 1000, ShareClass.FIXED)],
    ),
    "HAMi: Enflame shares": (
        """
        containers:
          - name: gcu
            resources: {limits: {enflame.com/vgcu: 1, enflame.com/vgcu-percentage: 22}}
        """,
        [("enflame", 1, None, 220, 220, ShareClass.FIXED)],
    ),
    "Volcano: numbers": (
        """
        containers:
          - name: v
            resources: {limits: {volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 3000, volcano.sh/vgpu-cores: 50}}
        """,
        [("nvidia", 1, 3000 * MI, None, 500, ShareClass.FIXED)],
    ),
    "vLLM's chart: quoted, in requests and limits": (
        """
        containers:
          - name: vllm
            resources:
              requests: {cpu: "10", nvidia.com/gpu: "1", nvidia.com/gpumem: "20480", nvidia.com/gpucores: "50"}
              limits: {cpu: "12", nvidia.com/gpu: "1", nvidia.com/gpumem: "20480", nvidia.com/gpucores: "50"}
        """,
        [("nvidia", 1, 20480 * MI, None, 500, ShareClass.FIXED)],
    ),
    "vLLM's chart: a percentage": (
        """
        containers:
          - name: vllm
            resources:
              requests: {nvidia.com/gpu: "2", nvidia.com/gpumem-percentage: "80"}
              limits: {nvidia.com/gpu: "2", nvidia.com/gpumem-percentage: "80"}
        """,
        [("nvidia", 2, None, 800, 0, ShareClass.BURST)],
    ),
    "Xinference's chart: workers": (
        """
        initContainers: [{name: wait, image: busybox}]
        containers:
          - name: xinference-worker
            resources:
              limits: {nvidia.com/gpu: "1", nvidia.com/gpucores: "25", nvidia.com/gpumem-percentage: "40"}
              requests: {cpu: "2", nvidia.com/gpu: "1", nvidia.com/gpucores: "25", nvidia.com/gpumem-percentage: "40"}
        """,
        [("nvidia", 1, None, 400, 250, ShareClass.FIXED)],
    ),
    "the short form": (
        "containers: [{name: app, resources: {limits: {hami.io/gpu: 1}}}]",
        [("nvidia", 1, 16 * GI, None, 300, ShareClass.FIXED)],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    text, expected = FORMS[form]
    annotations = {"hami.io/gpu-memory": "16Gi", "hami.io/gpu-core": "30"} if form == "the short form" else {}
    ask = read_ask({"metadata": {"name": "p", "annotations": annotations}, "spec": yaml.safe_load(text)})
    assert ask is not None
    assert [
        (each.backend, each.cards, each.memory, each.percent, each.cores, each.share_class)
        for each in ask.shape.containers
    ] == expected
