from halimede.backends.function.request import Request as Request
from halimede.binding.server import Server as Server
from halimede.binding.tensors import Tensor as Tensor
from halimede.compiled import FORM as FORM

__version__: str
