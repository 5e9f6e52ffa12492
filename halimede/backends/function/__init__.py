"""The backend `function`: models that are functions of the program that runs the server (docs/binding-functions.md)."""

from halimede.backends.traits import Completes, Traits

TRAITS = Traits(
    "function",
    "halimede.backends.function.backend:FunctionBackend",
    completes=Completes.NEVER,
    optional_inputs=True,
    states=True,
    checks_outputs=False,  # `results` does, with texts for the author of the function
)
