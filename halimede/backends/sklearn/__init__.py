"""The backend `sklearn`: estimators of scikit-learn in files of skops. Importing this package imports neither."""

from halimede.backends.traits import Format, Home, Traits

TRAITS = Traits(
    "sklearn",
    "halimede.backends.sklearn.backend:SklearnBackend",
    formats=(Format("model.skops", directory=False, ending=".skops"),),
    aliases=("scikit-learn", "scikit_learn", "skops"),
    extra="sklearn",
    runs_user_code=True,  # a file may have types that the configuration trusts
    tensors_only=True,
    homes=(Home.SERVER, Home.CHILD),
)
