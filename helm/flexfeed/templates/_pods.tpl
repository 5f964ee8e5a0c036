{{/* What pods of all parts have alike. */}}

{{/* The beginning of a pod's spec: (list $ .Values.source). No variables for Services: FLEXFEED_…_PORT and the like would look like settings. */}}
{{- define "flexfeed.pod" -}}
{{- $top := index . 0 -}}
{{- $part := index . 1 -}}
serviceAccountName: {{ include "flexfeed.serviceAccountName" $top }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with $top.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Who programs run as: nobody with rights, as the images have it. */}}
{{- define "flexfeed.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
# Not the files inside: keys stay readable by their owner only.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "flexfeed.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Annotations and labels of a part's pods: (list $ "source" .Values.source (dict further annotations)) */}}
{{- define "flexfeed.podMeta" -}}
{{- $part := index . 2 -}}
{{- $annotations := merge (dict) (index . 3) $part.podAnnotations -}}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
labels:
  {{- /* Not the chart's version: pods are not to be replaced because of it alone. */}}
  {{- include "flexfeed.selector" (list (index . 0) (index . 1)) | nindent 2 }}
  {{- with (index . 0).Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with $part.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* A probe of a page: (list "/readyz" "http" failureThreshold periodSeconds) */}}
{{- define "flexfeed.probe" -}}
httpGet:
  path: {{ index . 0 }}
  port: {{ index . 1 }}
periodSeconds: {{ index . 3 }}
timeoutSeconds: 3
failureThreshold: {{ index . 2 }}
{{- end -}}

{{/* Settings as variables: (list "FLEXFEED_RELAY_" map). A list becomes one with commas. */}}
{{- define "flexfeed.variables" -}}
{{- $prefix := index . 0 -}}
{{- range $key, $value := index . 1 }}
- name: {{ $prefix }}{{ $key | upper | replace "-" "_" }}
  value: {{ include "flexfeed.text" $value | quote }}
{{- end }}
{{- end -}}

{{/* A value as text: numbers as they are written (large ones without an exponent), lists with commas. */}}
{{- define "flexfeed.text" -}}
{{- if kindIs "slice" . -}}
{{- $parts := list -}}
{{- range . }}{{ $parts = append $parts (include "flexfeed.text" .) }}{{ end -}}
{{- join "," $parts -}}
{{- else if kindIs "float64" . -}}
{{- if eq . (floor .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{- . | toString -}}
{{- end -}}
{{- end -}}

{{- define "flexfeed.volumeClaim" -}}
- metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- if .storageClass }}
    storageClassName: {{ .storageClass }}
    {{- end }}
    resources:
      requests:
        storage: {{ .size }}
{{- end -}}
