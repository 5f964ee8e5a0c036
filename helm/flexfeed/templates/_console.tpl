{{/* The console: its name, place and address. */}}

{{- define "flexfeed.consoleName" -}}
{{ include "flexfeed.fullname" . }}-console
{{- end -}}

{{/* Whether the console is inside the source. */}}
{{- define "flexfeed.consoleInside" -}}
{{- if and .Values.console.enabled .Values.source.enabled (eq .Values.database.mode "sqlite") }}yes{{ end -}}
{{- end -}}

{{/* Whether the console has pods of its own. */}}
{{- define "flexfeed.consoleApart" -}}
{{- if and .Values.console.enabled (ne .Values.database.mode "sqlite") }}yes{{ end -}}
{{- end -}}

{{/* Whether the console has a Service. */}}
{{- define "flexfeed.consoleReached" -}}
{{- if or (include "flexfeed.consoleApart" .) (and (include "flexfeed.consoleInside" .) (not .Values.console.httpLocal)) }}yes{{ end -}}
{{- end -}}

{{/* The address that people type, as far as it is known. */}}
{{- define "flexfeed.consoleUrl" -}}
{{- $console := .Values.console -}}
{{- if $console.publicUrl -}}
{{ $console.publicUrl }}
{{- else if and $console.ingress.enabled $console.ingress.host -}}
{{ ternary "https" "http" (not (empty $console.ingress.tlsSecret)) }}://{{ $console.ingress.host }}
{{- else if and $console.httpRoute.enabled $console.httpRoute.hostnames -}}
{{ ternary "https" "http" $console.httpRoute.tls }}://{{ index $console.httpRoute.hostnames 0 }}
{{- end -}}
{{- end -}}

{{/* Variables of the console that the source has, too. */}}
{{- define "flexfeed.consoleVariables" -}}
{{- with include "flexfeed.consoleUrl" . }}
- name: FLEXFEED_CONSOLE_PUBLIC_URL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.console.trustedProxies }}
- name: FLEXFEED_CONSOLE_TRUSTED_PROXY
  value: {{ join "," . | quote }}
{{- end }}
{{- end -}}
