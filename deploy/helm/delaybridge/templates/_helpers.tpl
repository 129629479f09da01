{{/* The name of all objects of the release, at most 63 characters with what is put behind it. */}}
{{- define "delaybridge.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "delaybridge.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "delaybridge.labels" -}}
{{ include "delaybridge.selectorLabels" . }}
app.kubernetes.io/version: {{ default .Chart.AppVersion .Values.image.tag | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "delaybridge.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "delaybridge.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The Deployments: for each its component, its name, its roles and its part of the values. */}}
{{- define "delaybridge.deployments" -}}
{{- $name := include "delaybridge.fullname" . -}}
{{- if .Values.rolesApart }}
- {component: ingest, name: {{ $name }}-ingest, roles: ingest}
- {component: scheduler, name: {{ $name }}-scheduler, roles: scheduler}
{{- else }}
- {component: bridge, name: {{ $name }}, roles: "ingest,scheduler"}
{{- end }}
{{- end -}}

{{/* Whether it speaks to NATS, to Kafka: not empty if so. */}}
{{- define "delaybridge.hasNATS" -}}
{{- if or .Values.nats.url .Values.nats.urlSecret.name -}}yes{{- end -}}
{{- end -}}
{{- define "delaybridge.hasKafka" -}}
{{- if .Values.kafka.brokers -}}yes{{- end -}}
{{- end -}}

{{/*
The files that are mounted from existing Secrets, below /etc/bridge: each with its
Secret, its key there, its path, and the variable that says where it is.
*/}}
{{- define "delaybridge.files" -}}
{{- with .Values.redis.urlSecret }}{{ if .name }}
- {secret: {{ .name | quote }}, key: {{ .key | quote }}, path: redis-url, variable: BRIDGE_REDIS_URL_FILE}
{{- end }}{{ end }}
{{- with .Values.redis.passwordSecret }}{{ if .name }}
- {secret: {{ .name | quote }}, key: {{ .key | quote }}, path: redis-password, variable: BRIDGE_REDIS_PASSWORD_FILE}
{{- end }}{{ end }}
{{- include "delaybridge.tlsFiles" (list .Values.redis.tls "redis") }}
{{- if include "delaybridge.hasNATS" . }}
{{- with .Values.nats.urlSecret }}{{ if .name }}
- {secret: {{ .name | quote }}, key: {{ .key | quote }}, path: nats-url, variable: BRIDGE_NATS_URL_FILE}
{{- end }}{{ end }}
{{- with .Values.nats.credsSecret }}{{ if .name }}
- {secret: {{ .name | quote }}, key: {{ .key | quote }}, path: nats.creds, variable: BRIDGE_NATS_CREDS}
{{- end }}{{ end }}
{{- with .Values.nats.nkeySecret }}{{ if .name }}
- {secret: {{ .name | quote }}, key: {{ .key | quote }}, path: nats-nkey, variable: BRIDGE_NATS_NKEY_FILE}
{{- end }}{{ end }}
{{- include "delaybridge.tlsFiles" (list .Values.nats.tls "nats") }}
{{- end }}
{{- if include "delaybridge.hasKafka" . }}
{{- with .Values.kafka.sasl.passwordSecret }}{{ if .name }}
- {secret: {{ .name | quote }}, key: {{ .key | quote }}, path: kafka-password, variable: BRIDGE_KAFKA_SASL_PASSWORD_FILE}
{{- end }}{{ end }}
{{- include "delaybridge.tlsFiles" (list .Values.kafka.tls "kafka") }}
{{- end }}
{{- if .Values.api.enabled }}
- {secret: {{ required "api.tokenSecret.name is required: the API listens beyond the pod" .Values.api.tokenSecret.name | quote }}, key: {{ .Values.api.tokenSecret.key | quote }}, path: api-token, variable: BRIDGE_API_TOKEN_FILE}
{{- end }}
{{- end -}}

{{- define "delaybridge.tlsFiles" -}}
{{- $tls := index . 0 }}{{ $broker := index . 1 }}
{{- if $tls.secret }}
{{- range $part := list "ca" "cert" "key" }}{{ with index $tls $part }}
- {secret: {{ $tls.secret | quote }}, key: {{ . | quote }}, path: {{ $broker }}-tls/{{ $part }}.pem, variable: BRIDGE_{{ upper $broker }}_TLS_{{ upper $part }}}
{{- end }}{{ end }}
{{- end }}
{{- end -}}

{{/* The image, by its digest if there is one. */}}
{{- define "delaybridge.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* What the container of a Deployment and of the test have in common. */}}
{{- define "delaybridge.environment" -}}
envFrom:
  - configMapRef:
      name: {{ include "delaybridge.fullname" . }}
{{- with .Values.extraEnvFrom }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end -}}

{{- define "delaybridge.mounts" -}}
{{- $files := include "delaybridge.files" . | fromYamlArray -}}
{{- if or $files .Values.extraVolumeMounts }}
volumeMounts:
{{- if $files }}
  - name: secrets
    mountPath: /etc/bridge
    readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "delaybridge.volumes" -}}
{{- $files := include "delaybridge.files" . | fromYamlArray -}}
{{- if or $files .Values.extraVolumes }}
volumes:
{{- if $files }}
  - name: secrets
    projected:
      defaultMode: 0440
      sources:
      {{- range $files }}
        - secret:
            name: {{ .secret }}
            items: [{key: {{ .key | quote }}, path: {{ .path }}}]
      {{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}
{{- end -}}
