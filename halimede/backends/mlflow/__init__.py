"""The backend `mlflow`: folders that MLflow writes, served by the backend of their flavour."""

from halimede.backends.traits import Format, Home, Traits

TRAITS = Traits(
    "mlflow",
    "halimede.backends.mlflow.backend:MlflowBackend",
    formats=(Format("MLmodel", directory=False),),
    extra="mlflow",
    runs_user_code=True,  # a file may have types that the configuration trusts
    tensors_only=True,
    homes=(Home.SERVER, Home.CHILD),
)
