"""All that is peculiar to kubelet: device plugin v1beta1, checkpoint, PodResources. DRA would stand beside it."""
