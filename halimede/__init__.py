"""Halimede: an inference server in Python that speaks Triton's protocols and serves its model repositories."""

from halimede.compiled import FORM as FORM

__version__ = "0.1.0"
