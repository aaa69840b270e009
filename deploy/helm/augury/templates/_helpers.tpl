{{- define "augury.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (default .Chart.Name .Values.nameOverride) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (default .Chart.Name .Values.nameOverride) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "augury.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "augury.labels" -}}
{{ include "augury.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "augury.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "augury.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "augury.image" -}}
{{- $device := ternary "cuda" "cpu" .Values.gpu.enabled -}}
{{- printf "%s:%s" .Values.image.repository (default (printf "%s-%s" .Chart.AppVersion $device) .Values.image.tag) -}}
{{- end -}}

{{- define "augury.keySecret" -}}
{{- if .Values.apiKey.existingSecret -}}
{{- .Values.apiKey.existingSecret -}}
{{- else if .Values.apiKey.value -}}
{{- include "augury.fullname" . -}}
{{- end -}}
{{- end -}}

{{- define "augury.modelClaim" -}}
{{- if .Values.modelVolume.existingClaim -}}
{{- .Values.modelVolume.existingClaim -}}
{{- else if .Values.modelVolume.create -}}
{{- printf "%s-models" (include "augury.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "augury.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}
