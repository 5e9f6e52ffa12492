"""The backend `tensorflow`: SavedModels and frozen graphs. Importing this package does not import the runtime.

Its models run in child processes only: the runtime takes a gigabyte, has one setting of threads per process, and ends
the process on some mistakes."""

from types import MappingProxyType

from halimede.backends.traits import Completes, DeviceKind, Format, Home, Traits

TRAITS = Traits(
    "tensorflow",
    "halimede.backends.tensorflow.backend:TensorFlowBackend",
    formats=(
        Format(
            "model.savedmodel", "tensorflow_savedmodel", directory=True, ending=".savedmodel", marker="saved_model.pb"
        ),
        Format("model.graphdef", "tensorflow_graphdef", directory=False, ending=".graphdef"),
    ),
    guesses_format=False,  # a configuration with only the backend may mean either format
    aliases=("tf", "savedmodel", "graphdef"),
    extra="tensorflow",
    environment=MappingProxyType({"TF_CPP_MIN_LOG_LEVEL": "2"}),
    tensors_only=True,
    completes=Completes.ALWAYS,
    ragged=True,
    states=True,
    devices=frozenset({DeviceKind.CPU, DeviceKind.GPU}),
    cpu_instances=2,
    homes=(Home.CHILD,),
)
