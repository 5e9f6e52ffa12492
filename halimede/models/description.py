"""What a model is by its files, without loading it: for those who only show it. Any thread; blocks."""

import json
from typing import Any

from halimede.config import read
from halimede.models.backend_pool import pool_to_look
from halimede.models.loader import LoadOptions
from halimede.models.repository import FoundModel
from halimede.models.review import review_model


def described(found: FoundModel) -> dict[str, Any]:
    """The configuration, as the protocol prints it. Inputs and outputs that it does not name are read from the model's
    file, where that can be done without running code of the model; or else they are missing. Raises Error."""
    draft = read(found.folder)
    text = draft.json()
    if draft.needs_description and not draft.is_ensemble:
        text = _completed(found) or text
    config: dict[str, Any] = json.loads(text)
    return config


def _completed(found: FoundModel) -> str | None:
    options = LoadOptions()
    with pool_to_look(options.settings) as backends:
        config = review_model(found, backends, options).config
    return None if config is None else config.json
