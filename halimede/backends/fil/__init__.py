"""The backend `fil`: forests of XGBoost, LightGBM and treelite. Importing this package does not import the runtime."""

from types import MappingProxyType

from halimede.backends.traits import DeviceKind, Format, Home, Traits

TRAITS = Traits(
    "fil",
    "halimede.backends.fil.backend:ForestBackend",
    formats=(
        Format("xgboost.json", directory=False, ending=".json"),
        Format("xgboost.ubj", directory=False, ending=".ubj"),
        Format("xgboost.model", directory=False),
        Format("checkpoint.tl", directory=False, ending=".tl"),
        Format("model.txt", directory=False, ending=".txt"),
    ),
    guesses_format=False,  # `model_type` chooses the file if the configuration names only the backend (BX2)
    aliases=("xgboost", "lightgbm", "treelite", "forest"),
    extra="fil",
    conversions=MappingProxyType({"treelite": "halimede.backends.fil.convert:to_checkpoint"}),
    tensors_only=True,
    homes=(Home.SERVER, Home.CHILD),
    devices=frozenset({DeviceKind.CPU, DeviceKind.GPU}),
)
