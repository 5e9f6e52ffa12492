"""The errors by which the scheduler itself ends a request, with Triton's texts."""

from halimede.errors import Cancelled, Invalid, Unavailable
from halimede.scheduling.inference import Inference

STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


def stopping(inference: Inference) -> Unavailable:
    """For a request to a version that is unloaded (S3)."""
    return Unavailable(inference.request.log_prefix + STOPPING)


def cancelled(inference: Inference) -> Cancelled:
    """For a request whose client has gone."""
    return Cancelled(inference.request.log_prefix + "Cancelled")


def not_iterative() -> Invalid:
    """For a request that its model wants to run once more, which only an iterative sequence may (S72, CB37)."""
    return Invalid(
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
        "such a flag."
    )
