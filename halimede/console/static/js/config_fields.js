// What the fields of a model configuration mean, and their defaults. Keys are paths; `*` stands for a place in a list
// or for any name.

/** @type {Record<string, [string, unknown?]>} */
const FIELDS = {
  name: ["The name of the model. It is that of its folder."],
  platform: ["What kind of model this is, in Triton's older form.", ""],
  backend: ["The runtime that executes the model."],
  runtime: ["The library of the backend, if it has several.", ""],
  "version_policy.latest.num_versions": ["The newest versions that are served, so many.", 1],
  "version_policy.all": ["All versions are served."],
  "version_policy.specific.versions": ["Only these versions are served."],
  max_batch_size: ["Rows that one execution takes at most. 0: the model does not batch, and its shapes are whole.", 0],
  "input.*.name": ["The name of an input, as requests have it."],
  "input.*.data_type": ["The datatype of its elements."],
  "input.*.format": ["How a picture lies in the tensor. It only tells clients.", "FORMAT_NONE"],
  "input.*.dims": ["Its shape without the batch. -1: any size."],
  "input.*.reshape.shape": ["The shape that the model gets instead."],
  "input.*.is_shape_tensor": ["Its values are shapes (TensorRT).", false],
  "input.*.allow_ragged_batch": ["Requests with different shapes may be in one batch.", false],
  "input.*.optional": ["Requests may leave it out.", false],
  "input.*.is_non_linear_format_io": ["It has a vendor's memory layout (TensorRT).", false],
  "output.*.name": ["The name of an output."],
  "output.*.data_type": ["The datatype of its elements."],
  "output.*.dims": ["Its shape without the batch. -1: any size."],
  "output.*.reshape.shape": ["The shape that clients get instead."],
  "output.*.label_filename": ["The file with the names of the classes, a line for each.", ""],
  "output.*.is_shape_tensor": ["Its values are shapes (TensorRT).", false],
  "output.*.is_non_linear_format_io": ["It has a vendor's memory layout (TensorRT).", false],
  "batch_input.*": ["An input that the server computes from the batch."],
  "batch_output.*": ["How an output is divided among the requests of the batch."],
  "optimization.priority": ["The priority of the model's GPU stream.", "PRIORITY_DEFAULT"],
  "optimization.input_pinned_memory.enable": ["Inputs are gathered in pinned memory, which a GPU reads faster.", true],
  "optimization.output_pinned_memory.enable": ["Outputs are copied through pinned memory.", true],
  "optimization.gather_kernel_buffer_threshold": ["Buffers from which on a GPU kernel gathers them. 0: never.", 0],
  "optimization.eager_batching": ["Inputs of the next batch are gathered while one runs.", false],
  "optimization.execution_accelerators": ["Accelerators of the runtime, such as TensorRT or OpenVINO."],
  "dynamic_batching.preferred_batch_size": ["Batches of these sizes start at once; others wait for the delay.", []],
  "dynamic_batching.max_queue_delay_microseconds": ["How long a request may wait for others, to fill a batch.", 0],
  "dynamic_batching.preserve_ordering": ["Responses leave in the order of their requests.", false],
  "dynamic_batching.priority_levels": ["Number of priorities that requests may have. 1 is the highest.", 0],
  "dynamic_batching.default_priority_level": ["The priority of a request that names none.", 0],
  "dynamic_batching.default_queue_policy.timeout_action": ["What happens to a request that waited too long.", "REJECT"],
  "dynamic_batching.default_queue_policy.default_timeout_microseconds": ["How long a request may wait. 0: as long as it takes.", 0],
  "dynamic_batching.default_queue_policy.allow_timeout_override": ["A request may bring its own time limit.", false],
  "dynamic_batching.default_queue_policy.max_queue_size": ["Requests that may wait; more are refused. 0: any number.", 0],
  "dynamic_batching.priority_queue_policy": ["Rules of the queue for single priorities.", {}],
  "sequence_batching.direct": ["Each sequence has a row of the batch for itself."],
  "sequence_batching.oldest": ["Batches are filled with the oldest requests, one of each sequence."],
  "sequence_batching.oldest.max_candidate_sequences": ["Sequences that one instance holds at a time."],
  "sequence_batching.max_sequence_idle_microseconds": ["A sequence without a request for so long has ended.", 1000000],
  "sequence_batching.control_input": ["Inputs that tell the model where sequences start and end."],
  "sequence_batching.state": ["Tensors that the server keeps from one request of a sequence to the next."],
  "sequence_batching.iterative_sequence": ["The model asks to run again until it has finished.", false],
  "instance_group.*.name": ["The name of a group of instances."],
  "instance_group.*.kind": ["Where the instances run.", "KIND_CPU"],
  "instance_group.*.count": ["Instances that run side by side, for each GPU of the list.", 1],
  "instance_group.*.gpus": ["The GPUs that they run on.", []],
  "instance_group.*.secondary_devices": ["Other devices that they use.", []],
  "instance_group.*.profile": ["Optimization profiles (TensorRT).", []],
  "instance_group.*.passive": ["They are loaded, and get no requests.", false],
  "instance_group.*.host_policy": ["Which CPUs they run on: a policy of the command line.", ""],
  "instance_group.*.rate_limiter": ["What they need of the rate limiter's resources."],
  default_model_filename: ["The file in each version's folder.", ""],
  cc_model_filenames: ["Files for single compute capabilities.", {}],
  metric_tags: ["Labels that the metrics of this model have besides.", {}],
  "parameters.*": ["A setting of the backend."],
  "model_warmup.*": ["Requests that run before the model is in service."],
  model_operations: ["Libraries of custom operators."],
  "model_transaction_policy.decoupled": ["A request may have any number of responses.", false],
  "model_repository_agents": ["Programs that look at the model before it is loaded."],
  "response_cache.enable": ["Answers are kept for equal requests.", false],
  "ensemble_scheduling.step.*.model_name": ["The model of a step."],
  "ensemble_scheduling.step.*.model_version": ["Its version. -1: the newest.", -1],
  "ensemble_scheduling.step.*.input_map": ["The tensors of the ensemble that are its inputs."],
  "ensemble_scheduling.step.*.output_map": ["The names that its outputs get in the ensemble."],
  "ensemble_scheduling.step.*.model_namespace": ["The repository of the step's model.", ""],
  "ensemble_scheduling.max_inflight_requests": ["Responses of a decoupled step in flight at most. 0: any number.", 0],
};

const EMPTY = (value) =>
  value === "" || value === 0 || value === false || value === "0" || (typeof value === "object" && value !== null && !Object.keys(value).length);

/**
 * The leaves of a configuration, each with what it means and whether it is the default.
 * @param {any} config
 * @returns {{path: string[], value: unknown, why: string, isDefault: boolean}[]}
 */
export function entries(config) {
  const found = [];
  const walk = (value, path) => {
    const pattern = path.map((part) => (/^\d+$/.test(part) ? "*" : part)).join(".");
    const known = FIELDS[pattern] ?? FIELDS[`${pattern.split(".").slice(0, -1).join(".")}.*`];
    const flat = value === null || typeof value !== "object" || !Object.keys(value).length;
    const simple = Array.isArray(value) && value.every((each) => each === null || typeof each !== "object");
    const names = pattern.endsWith("_map") || pattern === "parameters.*";
    if (path.length && (flat || simple || names)) {
      const isDefault = known && known.length > 1 ? same(value, known[1]) : EMPTY(value);
      found.push({ path, value, why: known?.[0] ?? inherited(pattern), isDefault });
      return;
    }
    for (const [key, each] of Object.entries(value)) walk(each, [...path, key]);
  };
  walk(config, []);
  return found;
}

/** What the nearest known field around it means. */
function inherited(pattern) {
  for (let parts = pattern.split("."); parts.length > 1; ) {
    parts = parts.slice(0, -1);
    const known = FIELDS[parts.join(".")] ?? FIELDS[`${parts.join(".")}.*`];
    if (known) return known[0];
  }
  return "";
}

/** JSON of 64-bit numbers is text. */
function same(value, other) {
  return JSON.stringify(value) === JSON.stringify(other) || String(value) === String(other);
}
