{{/* Where the database is, and who knows its password. */}}

{{- define "flexfeed.needsDatabase" -}}
{{- if and (ne .Values.database.mode "sqlite") (or .Values.source.enabled .Values.console.enabled) }}yes{{ end -}}
{{- end -}}

{{- define "flexfeed.bundled" -}}
{{- if and (include "flexfeed.needsDatabase" .) (eq .Values.database.mode "bundled") }}yes{{ end -}}
{{- end -}}

{{/* An external database's has a name of its own, so that the bundled one's stays as it is, with the one password that opens the volume. */}}
{{- define "flexfeed.databaseSecret" -}}
{{- $made := printf "%s-database%s" (include "flexfeed.fullname" .) (ternary "-url" "" (eq .Values.database.mode "external")) -}}
{{- default $made .Values.database.existingSecret -}}
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
      {{- with .Values.database.caKey }}
      - key: {{ . }}
        path: ca.crt
      {{- end }}
{{- end }}
{{- end -}}

{{/* What has to replace pods that opened the database as it was given before. Of passwords that are made nothing is known here; of those that are given
only the beginning of a hash is shown, with which nobody finds them. */}}
{{- define "flexfeed.databaseSum" -}}
{{- with printf "%s%s" (default "" .Values.database.url) (default "" .Values.database.bundled.password) }}
checksum/database: {{ sha256sum . | trunc 8 | quote }}
{{- end }}
{{- end -}}

{{/* The bundled database's password: (list $ the Secret of before, or nothing). The server takes it when its volume is new, and never again. */}}
{{- define "flexfeed.bundledPassword" -}}
{{- $top := index . 0 -}}
{{- $found := default dict (index . 1) -}}
{{- $database := $top.Values.database -}}
{{- $given := $database.bundled.password -}}
{{- $kept := index (default dict $found.data) $database.passwordKey -}}
{{- if $kept -}}
{{- $kept = b64dec $kept -}}
{{- if and $given (ne $given $kept) -}}
{{- fail (printf "\n\ndatabase.bundled.password: the database has another one, that of the Secret %s, and takes no new one from here. Leave it out, or change it there first: see docs/kubernetes.md, \"The database\"." (include "flexfeed.databaseSecret" $top)) -}}
{{- end -}}
{{- $kept -}}
{{- else if and (not $given) (index (default dict (default dict $found.metadata).annotations) "helm.sh/resource-policy") -}}
{{- fail (printf "\n\ndatabase.passwordKey: the Secret %s has no key %s, and another password would lock everybody out: give the key that it has" (include "flexfeed.databaseSecret" $top) $database.passwordKey) -}}
{{- else -}}
{{- default (randAlphaNum 40) $given -}}
{{- end -}}
{{- end -}}
