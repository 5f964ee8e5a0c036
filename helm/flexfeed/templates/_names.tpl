{{/* Names, labels and images. */}}

{{/* Prefix of the names of objects. Names of releases may contain dots, those of Services may not;
a check ensures that they begin with a letter. */}}
{{- define "flexfeed.fullname" -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- $full | replace "." "-" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that select a part: (list $ "source") */}}
{{- define "flexfeed.selector" -}}
{{- $top := index . 0 -}}
app.kubernetes.io/name: {{ default $top.Chart.Name $top.Values.nameOverride }}
app.kubernetes.io/instance: {{ $top.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of an object: (list $ "source"), and optionally more labels as a map. Each key occurs
once; the checks refuse the chart's own. */}}
{{- define "flexfeed.labels" -}}
{{- $top := index . 0 -}}
{{ include "flexfeed.selector" . }}
app.kubernetes.io/version: {{ $top.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: flexfeed
app.kubernetes.io/managed-by: {{ $top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $top.Chart.Name $top.Chart.Version | replace "+" "_" }}
{{- $more := dict -}}
{{- if gt (len .) 2 }}{{ $more = default dict (index . 2) }}{{ end -}}
{{- with merge (dict) $more (default dict $top.Values.commonLabels) }}
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

{{/* Image of a program: (list $ "source"). A digest replaces the tag. */}}
{{- define "flexfeed.image" -}}
{{- $top := index . 0 -}}
{{- $image := $top.Values.image -}}
{{- if $image.registry }}{{ trimSuffix "/" $image.registry }}/{{ end -}}
{{- if $image.prefix }}{{ trimSuffix "/" $image.prefix }}/{{ end -}}
{{- with index $image.digests (index . 1) -}}
{{ index $ 1 }}@{{ . }}
{{- else -}}
{{ index . 1 }}:{{ default $top.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}
