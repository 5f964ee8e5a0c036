{{/* Where the database is, and who knows its password. */}}

{{- define "flexfeed.needsDatabase" -}}
{{- if and (ne .Values.database.mode "sqlite") (or .Values.source.enabled .Values.console.enabled) }}yes{{ end -}}
{{- end -}}

{{- define "flexfeed.bundled" -}}
{{- if and (include "flexfeed.needsDatabase" .) (eq .Values.database.mode "bundled") }}yes{{ end -}}
{{- end -}}

{{- define "flexfeed.databaseSecret" -}}
{{- default (printf "%s-database" (include "flexfeed.fullname" .)) .Values.database.existingSecret -}}
{{- end -}}

{{/* The variables of a program that opens the database. An empty DATABASE_URL counts as none, whatever the image says. */}}
{{- define "flexfeed.databaseVariables" -}}
{{- if ne .Values.database.mode "sqlite" }}
- name: DATABASE_URL
  value: ""
- name: DATABASE_URL_FILE
  value: /etc/flexfeed/database/url
{{- end }}
{{- end -}}

{{- define "flexfeed.databaseMount" -}}
{{- if ne .Values.database.mode "sqlite" }}
- name: database
  mountPath: /etc/flexfeed/database
  readOnly: true
{{- end }}
{{- end -}}

{{- define "flexfeed.databaseVolume" -}}
{{- if ne .Values.database.mode "sqlite" }}
- name: database
  secret:
    secretName: {{ include "flexfeed.databaseSecret" . }}
    defaultMode: 0440
    items:
      - key: {{ .Values.database.urlKey }}
        path: url
{{- end }}
{{- end -}}
