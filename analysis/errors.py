"""The error a user of `analysis` can do something about."""


class AnalysisError(ValueError):
    """The folder or the request is at fault; the message is one readable line."""
