"""Which modules without parameters may see a whole batch where samples' gradients are bounded.

A bound on a sample's gradient limits what a record changes only if no sample changes what the
module makes of another. Trying a module shows that for the samples at hand; for those named here it
follows from what they compute. Any other module gets one sample at a time.
"""

from torch import nn

_ELEMENTWISE: frozenset[type[nn.Module]] = frozenset({
    nn.CELU, nn.Dropout, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh,
    nn.Identity, nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU,
    nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold,
})  # fmt: skip
_POOLS: frozenset[type[nn.Module]] = frozenset({
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    nn.AvgPool1d, nn.AvgPool2d, nn.MaxPool1d, nn.MaxPool2d,
})  # fmt: skip
"""They pool the last dimensions alone; samples that lack one stand where channels would."""


def treats_apart(module: nn.Module) -> bool:
    """Whether no input makes the module mix samples, which are the first dimension.

    It must be one of torch's own by its exact type, as torch wrote it: a subclass, a hook or a
    `forward` of the instance's own can do anything.
    """
    if not unaltered(module):
        return False
    kind = type(module)
    if kind in _ELEMENTWISE or kind in _POOLS:
        return True
    # A dimension that counts from the end could be that of the samples.
    if kind is nn.Flatten:
        return _within(module.start_dim)
    return kind in (nn.Unflatten, nn.Softmax, nn.LogSoftmax, nn.GLU) and _within(module.dim)


def unaltered(module: nn.Module) -> bool:
    """Whether nothing was hung on the module that runs beside, or in place of, its `forward`."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return not any(hooks) and "forward" not in vars(module)


def _within(dimension: object) -> bool:
    return isinstance(dimension, int) and dimension >= 1
