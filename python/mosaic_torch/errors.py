"""What can go wrong, sorted by what the caller can do about it."""


class MosaicError(RuntimeError):
    """Base of every error that mosaic_torch raises."""


class UsageError(MosaicError, ValueError):
    """The call itself is wrong: another argument, or another order of calls, works."""


class DeviceError(MosaicError):
    """No usable GPU, or the model is not where it has to be."""


class HookError(MosaicError):
    """The launch path is not under control: `python -m mosaic_torch doctor` says why."""


class MissingTorchError(MosaicError, ImportError):
    """PyTorch is missing, or too old to load the extension."""
