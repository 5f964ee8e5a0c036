{{/* Names, labels and images. */}}

{{- define "flexfeed.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Of a part: (list $ "source") */}}
{{- define "flexfeed.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ default $top.Chart.Name $top.Values.nameOverride }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "flexfeed.labels" -}}
{{- $top := index . 0 -}}
{{ include "flexfeed.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: flexfeed
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_" }}
{{- with $top.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "flexfeed.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "flexfeed.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The image of a program: (list $ "source") */}}
{{- define "flexfeed.image" -}}
{{- $top := index . 0 -}}
{{- $image := $top.Values.image -}}
{{- if $image.registry }}{{ trimSuffix "/" $image.registry }}/{{ end -}}
{{- if $image.prefix }}{{ trimSuffix "/" $image.prefix }}/{{ end -}}
{{- index . 1 }}:{{ default $top.Chart.AppVersion $image.tag -}}
{{- end -}}
