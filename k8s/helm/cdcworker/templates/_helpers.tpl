{{- define "cdcworker.name" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "cdcworker.selector" -}}
app.kubernetes.io/name: cdcworker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "cdcworker.labels" -}}
{{ include "cdcworker.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "cdcworker.scheme" -}}
{{ ternary "https" "http" (not (empty .Values.tls.secret)) }}
{{- end -}}

{{- define "cdcworker.probe" -}}
httpGet:
  path: {{ .path }}
  port: rest
  {{- if .root.Values.tls.secret }}
  scheme: HTTPS
  {{- end }}
{{- end -}}

{{- define "cdcworker.properties" -}}
bootstrap.servers={{ .Values.kafka.bootstrapServers }}
group.id={{ .Values.groupId | default (include "cdcworker.name" .) }}
listeners={{ include "cdcworker.scheme" . }}://0.0.0.0:8083
{{- if .Values.tls.secret }}
listeners.https.ssl.certificate.location=/run/cdcworker/tls/tls.crt
listeners.https.ssl.key.location=/run/cdcworker/tls/tls.key
listeners.https.ssl.truststore.location=/run/cdcworker/tls/ca.crt
{{- end }}
{{- if .Values.auth.usersSecret }}
rest.auth.file=/run/cdcworker/users/users.yaml
{{- else }}
{{- if not .Values.auth.open }}
{{- fail "auth.usersSecret is empty: name a secret with users.yaml, or open REST to everybody who reaches it with auth.open=true" }}
{{- end }}
{{- if not .Values.networkPolicy.enabled }}
{{- fail "auth.usersSecret is empty and networkPolicy.enabled is false: anybody could create connectors" }}
{{- end }}
rest.insecure.bind=true
{{- end }}
{{- if .Values.auth.interWorkerSecret }}
inter.worker.secret.file=/run/cdcworker/inter-worker/secret
{{- end }}
{{- range list "config" "offset" "status" "schema" }}
{{ . }}.storage.replication.factor={{ $.Values.kafka.replicationFactor }}
{{- end }}
{{- range $key, $value := .Values.config }}
{{ $key }}={{ $value }}
{{- end }}
{{- end -}}
