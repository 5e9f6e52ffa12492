// The call of a form as a command and as programs, to copy.

const MAX_SHOWN = 512;
const NUMPY = { BOOL: "bool", BYTES: "object", FP16: "float16", FP32: "float32", FP64: "float64", BF16: "float32" };

const numpy = (datatype) => NUMPY[datatype] ?? datatype.toLowerCase();
const quoted = (text) => JSON.stringify(text);

/** Whether the values are few enough to be written down. */
function fits(inputs) {
  return inputs.every(({ values }) => values.length <= MAX_SHOWN && !values.some((value) => value instanceof Uint8Array));
}

/**
 * @param {{host: string, model: string, version: string, inputs: any[], outputs: any[], parameters: any, stream: boolean, files: Record<string, string>}} call
 */
export function curl({ host, model, version, inputs, outputs, parameters, stream, files }) {
  const path = `http://${host}/v2/models/${encodeURIComponent(model)}${version ? `/versions/${version}` : ""}`;
  if (stream) {
    const document = Object.fromEntries(inputs.map(({ name, values }) => [name, values.length === 1 ? values[0] : values]));
    return `curl -N ${path}/generate_stream -d ${shell(JSON.stringify({ ...document, ...parameters }))}`;
  }
  const classes = outputs.filter((output) => output.classes);
  const document = {
    inputs: inputs.map(({ name, datatype, dims, values }) => ({ name, datatype, shape: dims, data: fits(inputs) ? values.map(plain) : ["…"] })),
    ...(classes.length ? { outputs: outputs.map(({ name, classes: n }) => (n ? { name, parameters: { classification: n } } : { name })) } : {}),
    ...(Object.keys(parameters).length ? { parameters } : {}),
  };
  const file = inputs.length === 1 ? files[inputs[0].name] : undefined;
  // A body without JSON is the only input of the model.
  if (file) return `curl ${path}/infer -H 'Inference-Header-Content-Length: 0' --data-binary @${shell(file)}`;
  if (fits(inputs)) return `curl ${path}/infer -d ${shell(JSON.stringify(document))}`;
  return `# The data are too long for a command line, so they are in a file: request.json\n# ${JSON.stringify(document)}\ncurl ${path}/infer -d @request.json`;
}

const plain = (value) => (typeof value === "number" && !Number.isFinite(value) ? String(value) : value);

function shell(text) {
  return `'${text.replace(/'/g, "'\\''")}'`;
}

/** @param {"http" | "grpc"} protocol @param {any} call */
export function python(protocol, { host, grpc, model, version, inputs, outputs, parameters, stream, files }) {
  if (stream) return streamed({ grpc, model, inputs });
  const lines = ["import numpy", `import tritonclient.${protocol} as triton`, "", `client = triton.InferenceServerClient(${quoted(protocol === "grpc" ? grpc : host)})`, ""];
  const names = inputs.map(({ name }) => variable(name));
  inputs.forEach((input, i) => lines.push(...made(input, names[i], files?.[input.name])));
  const classes = outputs.filter((output) => output.classes);
  if (classes.length) {
    lines.push("outputs = [");
    for (const { name, classes: n } of outputs) lines.push(`    triton.InferRequestedOutput(${quoted(name)}${n ? `, class_count=${n}` : ""}),`);
    lines.push("]");
  }
  const more = [
    ...(version ? [`model_version=${quoted(version)}`] : []),
    ...(classes.length ? ["outputs=outputs"] : []),
    ...Object.entries(parameters).map(([name, value]) => `${name}=${typeof value === "boolean" ? (value ? "True" : "False") : JSON.stringify(value)}`),
  ];
  lines.push(`result = client.infer(${[quoted(model), `[${names.join(", ")}]`, ...more].join(", ")})`);
  for (const { name } of outputs) lines.push(`print(result.as_numpy(${quoted(name)}))`);
  return lines.join("\n");
}

function made({ name, datatype, dims, values }, variableName, file) {
  const shape = `[${dims.join(", ")}]`;
  const type = numpy(datatype);
  let data;
  if (file) data = `numpy.array([open(${quoted(file)}, "rb").read()], dtype=object).reshape(${shape})`;
  else if (values.length > MAX_SHOWN) data = datatype === "BYTES" ? `numpy.full(${shape}, "text", dtype=object)` : `numpy.zeros(${shape}, dtype=numpy.${type})  # your data`;
  else {
    const list = values.map((value) => (typeof value === "boolean" ? (value ? "True" : "False") : typeof value === "string" ? quoted(value) : Number.isFinite(value) ? String(value) : `float("${value}")`));
    data = `numpy.array([${list.join(", ")}], dtype=${type === "object" ? "object" : `numpy.${type}`}).reshape(${shape})`;
  }
  return [`${variableName} = triton.InferInput(${quoted(name)}, ${shape}, ${quoted(datatype)})`, `${variableName}.set_data_from_numpy(${data})`];
}

function streamed({ grpc, model, inputs }) {
  const names = inputs.map(({ name }) => variable(name));
  const lines = ["import queue", "", "import numpy", "import tritonclient.grpc as triton", "", "answers = queue.Queue()", `client = triton.InferenceServerClient(${quoted(grpc)})`,
    "client.start_stream(lambda result, error: answers.put(error or result))"];
  inputs.forEach((input, i) => lines.push(...made(input, names[i], undefined)));
  lines.push(`client.async_stream_infer(${quoted(model)}, [${names.join(", ")}], enable_empty_final_response=True)`,
    "while True:", "    answer = answers.get()", "    if isinstance(answer, Exception):", "        raise answer",
    "    response = answer.get_response()", '    if response.parameters["triton_final_response"].bool_param:', "        break", "    print(response.outputs, response.raw_output_contents)", "client.stop_stream()");
  return lines.join("\n");
}

function variable(name) {
  const made = name.replace(/\W/g, "_").replace(/^(\d)/, "_$1").toLowerCase();
  return ["client", "triton", "numpy", "result", "outputs", "in", "from", "import"].includes(made) ? `${made}_input` : made || "tensor";
}
