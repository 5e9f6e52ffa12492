{{/* The name of all objects. */}}
{{- define "halimede.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "halimede.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "halimede.labels" -}}
{{ include "halimede.selector" . }}
app.kubernetes.io/version: {{ default .Chart.AppVersion .Values.image.tag | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "halimede.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "halimede.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "halimede.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The secret with the certificate of the gRPC port; empty without TLS. */}}
{{- define "halimede.tlsSecret" -}}
{{- if .Values.tls.secretName -}}
{{- .Values.tls.secretName -}}
{{- else if .Values.tls.certManager.enabled -}}
{{- include "halimede.fullname" . }}-tls
{{- end -}}
{{- end -}}

{{- define "halimede.scaled" -}}
{{- if or .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled -}}true{{- end -}}
{{- end -}}

{{/* Rules that the schema cannot state. */}}
{{- define "halimede.check" -}}
{{- $sources := 0 -}}
{{- if .Values.models.existingClaim }}{{ $sources = add1 $sources }}{{ end -}}
{{- if .Values.models.claim.enabled }}{{ $sources = add1 $sources }}{{ end -}}
{{- if .Values.models.url }}{{ $sources = add1 $sources }}{{ end -}}
{{- if .Values.models.initContainer.enabled }}{{ $sources = add1 $sources }}{{ end -}}
{{- if ne (int $sources) 1 -}}
{{- fail "set exactly one of models.existingClaim, models.claim.enabled, models.url and models.initContainer.enabled" -}}
{{- end -}}
{{- if and .Values.models.initContainer.enabled (not .Values.models.initContainer.image) -}}
{{- fail "models.initContainer.image is missing" -}}
{{- end -}}
{{- if and .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled -}}
{{- fail "KEDA makes an HPA of its own: set only one of autoscaling.hpa.enabled and autoscaling.keda.enabled" -}}
{{- end -}}
{{- if lt (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas) -}}
{{- fail "autoscaling.maxReplicas is less than autoscaling.minReplicas" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuer) -}}
{{- fail "tls.certManager.issuer is missing" -}}
{{- end -}}
{{- if and .Values.tls.mutual (not (include "halimede.tlsSecret" .)) -}}
{{- fail "tls.mutual needs tls.secretName or tls.certManager.enabled" -}}
{{- end -}}
{{- if and .Values.gateway.enabled (not .Values.gateway.parents) -}}
{{- fail "gateway.parents is empty: the routes belong to no gateway" -}}
{{- end -}}
{{- if and (eq .Values.sequences.provider "envoy-gateway") (not .Values.gateway.enabled) -}}
{{- fail "sequences.provider envoy-gateway needs gateway.enabled" -}}
{{- end -}}
{{- end -}}
