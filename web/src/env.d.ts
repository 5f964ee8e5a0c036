declare module "swagger-ui-dist/swagger-ui-es-bundle.js" {
  const render: (options: Record<string, unknown>) => void;
  export default render;
}
