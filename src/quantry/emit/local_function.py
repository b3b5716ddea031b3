"""Model-local functions, written as ONNX text."""

import onnx
import onnx.parser
import onnx_ir as ir

_CONTRIB_DOMAIN = "com.microsoft"


def add_function(model: ir.Model, domain: str, text: str, overload: str = "") -> None:
    """Parse a function, add it to the model and import the domains it needs.

    A body must import the operator set of its model, because onnxruntime resolves it there.

    Args:
        model: The model.
        domain: Domain of the function.
        text: ``name <attributes> (inputs) => (outputs) { body }`` in ONNX text.
        overload: Tells functions of one name apart where a model needs several.
    """
    imports = {"": model.opset_imports[""]}
    if f"{_CONTRIB_DOMAIN}." in text:
        imports[_CONTRIB_DOMAIN] = 1
        model.opset_imports.setdefault(_CONTRIB_DOMAIN, 1)
    model.opset_imports.setdefault(domain, 1)
    described = ", ".join(f'"{name}" : {version}' for name, version in imports.items())
    marked = f', overload: "{overload}"' if overload else ""
    proto = onnx.parser.parse_function(f'<domain: "{domain}", opset_import: [{described}]{marked}> {text}')
    # The parser names no nodes; onnx-ir would, by a counter that outlives the model.
    for index, node in enumerate(proto.node):
        node.name = f"{proto.name}_{node.op_type}_{index}"
    function = ir.serde.deserialize_function(proto)
    model.functions[function.identifier()] = function
