"""The machinery of `halimede model run`, `halimede init` and `halimede graph`: tools for authors of models.

`model run`: `inputs` makes a request, `session` runs the model, `outputs` shows the response. `init`: `scaffold` and
`new_config`. `graph`: `graph_sources` reads configurations, `graph_pipeline` makes steps and tensors of them,
`graph_text` and `graph_svg` show these.
"""
